"""Programs that begin where their imports end: one process imports the large libraries once, and forks every program.

What `python WORDS...` would run goes on as a process of its own, with variables, a folder and pipes of its own; Python and the
libraries read theirs when that one process began. Importing costs eight CPU seconds: a test of several programs costs them once.
"""

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TextIO

ROOT = Path(__file__).parents[2]
Variables = Mapping[str, str]


@dataclass(frozen=True)
class Server:
    """The process that forks, and the socket on which it is asked to."""

    process: "subprocess.Popen[bytes]"
    link: socket.socket


@cache
def server() -> Server:
    """One for every process that asks; it ends with that."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tests.support.forked"]
    with theirs:
        return Server(subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, cwd=ROOT, env=variables), ours)


@dataclass(frozen=True)
class Running:
    """Processes of one program, of which the first to fail ends the others."""

    pids: list[int]

    def wait(self, timeout: float = 900.0) -> int:
        """The exit code of the one that failed, or 0; as `subprocess` has it. After `timeout` seconds they are killed."""
        link = server().link
        if not select.select([link], [], [], timeout)[0]:
            for pid in self.pids:
                os.kill(pid, signal.SIGKILL)
            link.recv(99)
            raise TimeoutError(f"a program took longer than {timeout:g} s")
        return int(link.recv(99))


def begin(
    words: Sequence[str], cwd: Path | str, variables: Sequence[Variables], out: int, err: int, is_waited_for: bool = True
) -> Running:
    """Start the program once for each set of variables beside those of this process. `wait` for it before the next one begins."""
    places = {"cwd": os.path.abspath(cwd), "variables": [{**os.environ, **one} for one in variables]}
    order = {"words": words, **places, "is_waited_for": is_waited_for}
    link = server().link
    socket.send_fds(link, [json.dumps(order).encode()], [out, err])
    # a number is how a program ended that nobody waited for
    while isinstance(pids := json.loads(link.recv(9999)), int):
        continue
    return Running(pids)


@dataclass(frozen=True)
class Beside:
    """A program that goes on beside others until it is killed; how it ended is not known."""

    pid: int
    handle: int

    @property
    def runs(self) -> bool:
        return not select.select([self.handle], [], [], 0)[0]

    def kill(self) -> None:
        """SIGKILL, and wait until it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        select.select([self.handle], [], [])


def beside(*words: str, cwd: Path | str = ".") -> Beside:
    """Start the program, which prints where this process does, and go on."""
    [pid] = begin(words, cwd, [{}], 1, 2, is_waited_for=False).pids
    return Beside(pid, os.pidfd_open(pid))


@contextmanager
def heard(*words: str, cwd: Path | str = ".") -> Iterator[tuple[Running, TextIO]]:
    """A program, and what it prints while it runs."""
    read, write = os.pipe()
    running = begin(words, cwd, [{}], write, write)
    os.close(write)
    with open(read, errors="replace") as output:
        yield running, output


def run(
    *words: str, cwd: Path | str = ".", variables: Sequence[Variables] = ({},), timeout: float = 900.0
) -> subprocess.CompletedProcess[str]:
    """The same until its end, with what it printed."""
    with TemporaryFile("w+", errors="replace") as out, TemporaryFile("w+", errors="replace") as err:
        code = begin(words, cwd, variables, out.fileno(), err.fileno()).wait(timeout)
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


def serve(link: socket.socket) -> list[str]:
    """Fork whatever is asked for until nobody can ask any more; gives the words in a fork, and none at the end."""
    while True:
        message, pipes, _, _ = socket.recv_fds(link, 1 << 20, 2)
        if not message:
            return []
        order, children = json.loads(message), list[int]()
        for variables in order["variables"]:
            if not (child := os.fork()):
                link.detach()
                for fd, pipe in enumerate((os.open(os.devnull, os.O_RDONLY), *pipes)):
                    os.dup2(pipe, fd)
                become(variables, order["cwd"])
                return order["words"]
            children.append(child)
        for pipe in pipes:
            os.close(pipe)
        link.send(json.dumps(children).encode())
        if order["is_waited_for"]:
            link.send(str(ended(children)).encode())


def become(variables: dict[str, str], cwd: str) -> None:
    # those that are there were made for other files
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(cwd)
    sys.path.insert(0, cwd)


def ended(children: list[int]) -> int:
    """Wait for all; the first one that fails takes the others with it."""
    left, found = set(children), 0
    while left:
        pid, status = os.wait()
        if pid not in left:
            continue
        left.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        if code and not found:
            found = code
            for other in left:
                os.kill(other, signal.SIGKILL)
    return found


def main() -> None:
    from tests.reliability.soak import prepare

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare()
    words: Any = serve(socket.socket(fileno=0))
    if not words:
        return
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
