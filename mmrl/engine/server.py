"""A server that mmrl starts on this machine: watched, started again when it dies, and ended with the run."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mmrl.engine.command import ServeCommand
from mmrl.engine.wire.client import EngineClient, EngineDownError
from mmrl.runtime.net.secrets import hide

log = logging.getLogger("mmrl")
WATCHDOG = Path(__file__).parent / "watchdog.py"
START_S = 1200.0
"""A large model is read from disk, and kernels are compiled, before a server answers."""
POLL_S = 0.2
END_S = 3.0
"""A server that is asked to end is killed after this: a run that is stopped is saved, and its user waits."""
TAIL = 12
"""Lines of a log in a message."""


class EngineServer:
    """One process of `vllm serve` and all that it starts.

    Args:
        command: port -> the command line.
        folder: where its log is kept.
        restarts: how often it is started again.

    Raises:
        ValueError: the port is taken, or the command cannot be made.
        EngineDownError: it ended before it answered, with the end of its log.
    """

    def __init__(self, command: Callable[[int], ServeCommand], port: int, folder: Path, restarts: int) -> None:
        self.port = free_port(port)
        self.url = f"http://127.0.0.1:{self.port}"
        self.command, self.folder, self.restarts = command(self.port), folder, restarts
        self.log_file = folder / "engine.log"
        self.failed = ""
        """Why it will not be started again."""
        self._closing = threading.Event()
        self._processes = [self._launch()]
        self._end = weakref.finalize(self, end_group, self._processes)
        self._wait_until_healthy()
        threading.Thread(target=watch, args=(weakref.ref(self),), name="engine-watch", daemon=True).start()

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The one that was started last; the server is its child."""
        return self._processes[-1]

    def close(self) -> None:
        """End it, and everything that it started."""
        self._closing.set()
        self._end()

    def start_again(self, code: int) -> bool:
        """Start it again after its death; False if it will not be restarted any more."""
        if self._closing.is_set():
            return False
        kill_group(self.process)
        if self.restarts <= 0:
            over = "and policy.engine.retries allows no further start"
            self.failed = f"the engine died again (exit code {code}), {over}{tail(self.log_file)}"
            return False
        self.restarts -= 1
        log.warning("the engine died (exit code %s): it is started again and given the weights of this step", code)
        try:
            self._processes.append(self._launch())
            self._wait_until_healthy()
        except Exception as error:  # noqa: BLE001 - whoever waits for the server reports what went wrong
            if self.process.poll() is None:
                self.failed = f"the engine was started again, and could not be given its weights ({error})"
                return False
        return True

    def _launch(self) -> "subprocess.Popen[bytes]":
        return start_below_watchdog(self.command.words, self.command.full_environment(), self.log_file)

    def _wait_until_healthy(self) -> None:
        client, until = EngineClient(self.url), time.monotonic() + START_S
        try:
            while not client.is_healthy():
                if self.process.poll() is not None:
                    raise EngineDownError(
                        f"the engine ended with exit code {self.process.returncode} before it answered{tail(self.log_file)}"
                    )
                if time.monotonic() > until:
                    raise EngineDownError(f"the engine did not answer within {START_S:.0f} s{tail(self.log_file)}")
                time.sleep(POLL_S)
        finally:
            client.close()


def watch(reference: "weakref.ref[EngineServer]") -> None:
    """Wait for the server's death and start it again; the thread ends with the object."""
    while True:
        server = reference()
        if server is None:
            return
        process = server.process
        del server
        code = process.wait()
        server = reference()
        if server is None or not server.start_again(code):
            return


def start_below_watchdog(words: Sequence[str], environment: Mapping[str, str], log: Path | None) -> "subprocess.Popen[bytes]":
    """The watchdog, whose child is the process: it ends with the watchdog and with this program, however that dies.

    Args:
        log: where its output is added; None: it goes to the terminal.
    """
    with contextlib.nullcontext() if log is None else log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-I", str(WATCHDOG), *words],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=None if out is None else subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )


def tail(log: Path | None) -> str:
    """The last lines of a log, for a message; empty where there is none."""
    try:
        lines = [] if log is None else log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return "".join(f"\n  {hide(line)}" for line in lines[-TAIL:])


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill what is left of a server's processes: one that died alone leaves others, which keep its memory and its port."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def end_group(processes: "list[subprocess.Popen[bytes]]") -> None:
    """Ask the newest server to end, and kill what does not."""
    for process in processes:
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.0 if process is not processes[-1] else END_S)
        kill_group(process)


def free_port(port: int) -> int:
    """The port, or one that is free for 0; ValueError where something listens there already."""
    with socket.socket() as found:
        # a port of a server that has just ended may be taken over, one where somebody listens may not
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(("127.0.0.1", port))
        except OSError:
            raise ValueError(
                f"policy.engine.port {port} is taken by another program: choose another, or 0 for any that is free"
            ) from None
        return int(found.getsockname()[1])
