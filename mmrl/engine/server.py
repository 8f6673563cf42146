"""Servers of vLLM: the command line that serves a policy's model, and one that mmrl starts, watches and ends with the run."""

import contextlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmrl.engine.venv import WORKER, find_venv
from mmrl.engine.wire.client import EngineClient, EngineDownError
from mmrl.policies.text.settings import EngineConfig, TextPolicyConfig
from mmrl.runtime.net.secrets import hide, read_secret
from mmrl.runtime.workers import LAUNCHER

SERVED = "policy"
"""The name under which a server that mmrl starts serves the model."""
EXTENSION = "vllm_extension.WeightExtension"
"""The class that joins vLLM's workers; its file lies in a folder of its own, since nothing else of mmrl can be imported there."""
CPU_CACHE_MB = 512
CPU_BATCH = 8192
LAUNCHERS = re.compile(rf"{LAUNCHER.pattern}|PYTHON(PATH|HOME)")
"""Environment variables of a trainer's process that would make a server believe it belongs to that job."""


@dataclass(frozen=True)
class ServeCommand:
    """A command line and what it needs of the environment."""

    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]

    def full_environment(self, own: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The variables of this process without those of its launcher, and the command's own."""
        return {name: value for name, value in own.items() if not LAUNCHERS.fullmatch(name)} | dict(self.environment)


def resolve_sync(policy: TextPolicyConfig, engine: EngineConfig) -> str:
    """How new weights reach the servers: lora, file or broadcast."""
    if engine.sync != "auto":
        return engine.sync
    return "file" if policy.lora is None else "lora"


def engine_dtype(policy: TextPolicyConfig, engine: EngineConfig) -> str:
    """The type that the server computes in."""
    return policy.dtype if engine.dtype == "auto" else engine.dtype


def serve_command(
    policy: TextPolicyConfig, engine: EngineConfig, port: int, lora_rank: int = 0, host: str = "127.0.0.1"
) -> ServeCommand:
    """The command that serves this policy's model, as a run with these settings needs it.

    Raises ValueError where there is no environment of vLLM, or its version is not one that mmrl was tested with.
    """
    venv = find_venv(Path(engine.environment).expanduser() if engine.environment else None)
    on_cpu = "cpu" in venv.version
    words = [str(venv.program), "serve", policy.model, "--host", host, "--port", str(port)]
    words += ["--served-model-name", SERVED, "--dtype", engine_dtype(policy, engine)]
    words += ["--max-num-seqs", str(engine.max_rows), "--logprobs-mode", "processed_logprobs", "--enable-scale-out"]
    words += ["--no-mm-device-do-normalize", "--generation-config", "vllm"]
    words += ["--media-io-kwargs", json.dumps({"video": {"num_frames": -1, "fps": policy.video.fps}})]
    words += ["--trust-remote-code"] if policy.trust_remote_code else []
    words += ["--max-model-len", str(engine.max_length)] if engine.max_length else []
    pixels = {name: value for name in ("min_pixels", "max_pixels") if (value := getattr(policy, name)) is not None}
    words += ["--mm-processor-kwargs", json.dumps(pixels)] if pixels else []
    words += [
        *sync_words(resolve_sync(policy, engine), lora_rank, bool(engine.local)),
        *memory_words(engine, on_cpu),
        *engine.options,
    ]
    return ServeCommand(tuple(words), tuple(variables(engine, on_cpu).items()))


def judge_command(model: str, port: int, cards: int, options: Sequence[str], environment: str = "") -> ServeCommand:
    """The command that serves a model as it is, to rewards on this machine, on the cards that it is shown.

    Raises ValueError where there is no environment of vLLM, or its version is not one that mmrl was tested with.
    """
    venv = find_venv(Path(environment).expanduser() if environment else None)
    on_cpu = "cpu" in venv.version
    words = [str(venv.program), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    words += ["--tensor-parallel-size", str(cards)] if cards > 1 else []
    own = {"VLLM_NO_USAGE_STATS": "1"} | ({"VLLM_CPU_OMP_THREADS_BIND": "nobind"} if on_cpu else {})
    return ServeCommand((*words, *memory_words(EngineConfig(), on_cpu), *options), tuple(own.items()))


def sync_words(sync: str, lora_rank: int, copies: bool = False) -> list[str]:
    """The options for new weights, which workers copy to their machine first or not."""
    extension = ["--worker-extension-cls", EXTENSION]
    if sync == "lora":
        # two: the one that is loaded next, and the one before it until that is dropped
        adapters = ["--enable-lora", "--max-lora-rank", str(serving_rank(lora_rank)), "--max-loras", "1", "--max-cpu-loras", "2"]
        return adapters + (extension if copies else [])
    return [*extension, "--weight-transfer-config", json.dumps({"backend": sync})]


def serving_rank(rank: int) -> int:
    """The smallest limit of ranks that vLLM knows and that holds this one; ValueError where none does."""
    found = next((limit for limit in (1, 8, 16, 32, 64, 128, 256, 320, 512) if rank <= limit), None)
    if found is None:
        raise ValueError(
            f'policy.lora.rank is {rank}, and vLLM serves adapters up to rank 512: lower it, or set policy.engine.sync = "file"'
        )
    return found


def memory_words(engine: EngineConfig, on_cpu: bool) -> list[str]:
    """The options for memory, and those that a CPU needs to serve."""
    cache_mb = engine.cache_mb or (CPU_CACHE_MB if on_cpu else 0)
    words = (
        ["--kv-cache-memory-bytes", str(cache_mb << 20)] if cache_mb else ["--gpu-memory-utilization", str(engine.memory_share)]
    )
    if on_cpu:
        # a prompt with a seed that is read in pieces ends the engine there
        longest = max(CPU_BATCH, engine.max_length)
        words += ["--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", str(longest)]
    return words + (["--enable-sleep-mode"] if engine.sleep and not on_cpu else [])


def variables(engine: EngineConfig, on_cpu: bool) -> dict[str, str]:
    """Environment variables of the server."""
    found = {
        "PYTHONPATH": str(WORKER),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    found |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"} if on_cpu else {}
    found |= {"CUDA_VISIBLE_DEVICES": engine.devices} if engine.devices else {}
    token = read_secret(engine.token_env)
    return found | ({"VLLM_API_KEY": token} if token else {})


log = logging.getLogger("mmrl")
WATCHDOG = Path(__file__).parent / "watchdog.py"
START_S = 1200.0
"""A large model is read from disk, and kernels are compiled, before a server answers."""
POLL_S = 0.2
END_S = 3.0
"""A server that is asked to end is killed after this: a run that is stopped is saved, and its user waits."""
TAIL = 12
"""Lines of a log in a message."""


@dataclass
class Supervised:
    """One process of this machine: `Supervised("engine 0", ("vllm", "serve", ...), {"CUDA_VISIBLE_DEVICES": "7"}, url=...)`."""

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    url: str = ""
    """The address that answers once it is ready; empty: a process that trains, and the others end with it."""
    log: Path | None = None
    """Where its output goes; None: to the terminal."""
    restarts: int = 0
    """How often it may still be started again."""
    is_needed: bool = False
    """Nothing trains without it: where it stays down, the trainers are asked to save and end."""
    running: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)
    """The watchdog, whose child it is."""

    def start(self) -> "subprocess.Popen[bytes]":
        self.running = start_below_watchdog(self.words, self.environment, self.log)
        return self.running

    def code(self) -> int | None:
        """The exit code, or 128 and the number of the signal that ended it; None while it runs."""
        code = None if self.running is None else self.running.poll()
        return 128 - code if code is not None and code < 0 else code

    def end(self, seconds: float) -> None:
        """Wait so long for its end, and kill what is left."""
        if self.running is not None:
            end(self.running, seconds)


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
        made, log_file = command(self.port), folder / "engine.log"
        self.program = Supervised("the engine", made.words, made.full_environment(), self.url, log_file, restarts)
        self.failed = ""
        """Why it will not be started again."""
        self._closing = threading.Event()
        self.process = self.program.start()
        """The one that was started last; the server is its child."""
        self._end = weakref.finalize(self, self.program.end, END_S)
        self._wait_until_healthy()
        threading.Thread(target=watch, args=(weakref.ref(self),), name="engine-watch", daemon=True).start()

    def close(self) -> None:
        """End it, and everything that it started."""
        self._closing.set()
        self._end()

    def start_again(self, code: int) -> bool:
        """Start it again after its death; False if it will not be restarted any more."""
        if self._closing.is_set():
            return False
        kill_group(self.process)
        if self.program.restarts <= 0:
            over = "and policy.engine.retries allows no further start"
            self.failed = f"the engine died again (exit code {code}), {over}{tail(self.program.log)}"
            return False
        self.program.restarts -= 1
        log.warning("the engine died (exit code %s): it is started again and given the weights of this step", code)
        try:
            self.process = self.program.start()
            self._wait_until_healthy()
        except Exception as error:  # noqa: BLE001 - whoever waits for the server reports what went wrong
            if self.process.poll() is None:
                self.failed = f"the engine was started again, and could not be given its weights ({error})"
                return False
        return True

    def _wait_until_healthy(self) -> None:
        client, until = EngineClient(self.url), time.monotonic() + START_S
        try:
            while not client.is_healthy():
                if self.process.poll() is not None:
                    raise EngineDownError(
                        f"the engine ended with exit code {self.process.returncode} before it answered{tail(self.program.log)}"
                    )
                if time.monotonic() > until:
                    raise EngineDownError(f"the engine did not answer within {START_S:.0f} s{tail(self.program.log)}")
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


def ask_to_end(process: "subprocess.Popen[bytes] | None") -> None:
    """Let a watchdog, where there is one, end what it holds."""
    if process is not None and process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def end(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Ask a watchdog, and what it holds, to end, and kill what does not in this time."""
    ask_to_end(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    kill_group(process)
    process.wait()


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
