"""Runs a model's Python in a locked process: `with Sandbox() as sandbox: sandbox.run("print(1 + 1)").text`."""

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Protocol, runtime_checkable

from mmrl.runtime.blame import UnavailableError
from mmrl.runtime.sandbox.lock import missing
from mmrl.runtime.sandbox.wire import CUT, LENGTH, LONGEST_ERROR, REPLY, SIZE, read, write
from mmrl.runtime.workers import started

MODULES = (
    *("_strptime", "base64", "bisect", "collections", "copy", "csv", "dataclasses", "datetime", "decimal", "enum", "fractions"),
    *("functools", "heapq", "io", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "textwrap"),
    *("threading", "time", "typing", "unicodedata", "numpy", "numpy.fft", "numpy.linalg", "PIL.Image", "PIL.ImageChops"),
    *("PIL.ImageColor", "PIL.ImageDraw", "PIL.ImageEnhance", "PIL.ImageFilter", "PIL.ImageFont", "PIL.ImageOps", "PIL.ImageStat"),
)
"""What code may import."""
LONGEST_CODE = 1 << 16
START_S = 60.0
MOST = 256
"""Sandboxes of a process at a time: each takes two of the files that it may have open."""
OWN_BYTES = 32 << 20
"""About what a sandbox takes before it runs anything."""
_ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
"""A lock covers no thread that runs already."""
_RUNNING = set[int]()
"""The processes of all sandboxes."""


class SandboxError(UnavailableError):
    """This machine cannot lock a process, its process did not start, or too many run already."""


@dataclass(frozen=True)
class Pixels:
    """A picture as bytes, row by row, three (red, green, blue) to a pixel: `Pixels(1, 1, b"\\xff\\0\\0")`."""

    width: int
    height: int
    data: bytes

    def __post_init__(self) -> None:
        if min(self.width, self.height) < 1 or len(self.data) != 3 * self.width * self.height:
            raise ValueError(f"{len(self.data)} bytes are no picture of {self.width} x {self.height} pixels in three colours")


@dataclass(frozen=True)
class Output:
    """The outcome of one piece of code."""

    text: str = ""
    """What it printed. Nothing in it is checked: it may hold markers of pictures."""
    pictures: tuple[Pixels, ...] = ()
    error: str = ""
    """Why it failed, in a sentence; empty if it did not."""


@dataclass(frozen=True)
class SandboxLimits:
    """How much one sandbox may take."""

    seconds: float = 5.0
    """By the clock, for a piece of code and what goes in and out."""
    cpu: int = 60
    """Seconds of processor time in all."""
    memory: int = 1 << 30
    """Bytes."""
    text: int = 8192
    """Characters that a piece of code prints; the rest is cut."""
    pictures: int = 8
    """That a piece of code shows."""
    pixels: int = 1 << 22
    """Of one picture."""


@runtime_checkable
class RunsCode(Protocol):
    """An environment that says what the sandbox of each of its episodes may take; None: it runs no code."""

    @property
    def sandbox(self) -> SandboxLimits | None: ...


@dataclass
class Sandbox:
    """One locked process, whose pieces of code share their variables; for one caller at a time.

    Code finds the pictures that it is given as `image` and `images` (PIL), and gives pictures back by `show(picture)`.

    Raises:
        SandboxError: see `missing()`.
    """

    bounds: SandboxLimits = field(default_factory=SandboxLimits)
    modules: Sequence[str] = MODULES
    seed: int = 0
    """Of `random` and `numpy.random`, so that a sandbox repeats what it did."""
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    def __post_init__(self) -> None:
        lacking = missing()
        if lacking:
            raise SandboxError(f"there is no sandbox on this machine: {lacking}")

    def run(self, code: str, pictures: Sequence[Pixels] = ()) -> Output:
        """Run a piece of code. After an error that ends the process, the next piece finds no variables.

        Raises SandboxError if no process can be started.
        """
        if len(code) > LONGEST_CODE:
            return Output(error=f"the code is {len(code)} characters long, and may be {LONGEST_CODE}")
        process = self._process or self._start()
        job = json.dumps({"code": code, "sizes": [(one.width, one.height) for one in pictures]}).encode()
        try:
            return exchange(process, [job, *(one.data for one in pictures)], self.bounds, self.bounds.seconds)
        except TimeoutError:
            why = f"it took longer than {self.bounds.seconds:g} s"
        except (EOFError, OSError):
            why = f"its process {death(stop(process, 1.0))}"
        except ValueError as error:
            why = str(error)
        except BaseException:
            # what comes late would be taken for the answer to the next piece
            self.close()
            raise
        self.close()
        return Output(error=f"{why}: its variables are lost")

    def close(self) -> None:
        """End the process, if one runs."""
        if self._process is not None:
            stop(self._process)
            self._process = None

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> "subprocess.Popen[bytes]":
        process = started(launch)
        weakref.finalize(self, stop, process)
        settings = {**asdict(self.bounds), "modules": list(self.modules), "seed": self.seed, "parent": os.getpid()}
        try:
            error = exchange(process, [json.dumps(settings).encode()], self.bounds, START_S).error
        except TimeoutError:
            error = f"it was not ready within {START_S:g} s"
        except (EOFError, OSError, ValueError):
            error = f"its process {death(stop(process, 1.0))}"
        if error:
            stop(process)
            raise SandboxError(f"the sandbox did not start: {error}")
        self._process = process
        return process


def exchange(process: "subprocess.Popen[bytes]", parts: Sequence[bytes], bounds: SandboxLimits, seconds: float) -> Output:
    """Send, and read the answer, whatever the code made of it.

    Raises ValueError if it is larger than allowed, TimeoutError, EOFError or OSError if the process ends.
    """
    assert process.stdin is not None and process.stdout is not None
    end = time.monotonic() + seconds
    for data in parts:
        write(process.stdin.fileno(), LENGTH.pack(len(data)) + data, end)
    pipe = process.stdout.fileno()
    text, error, number = REPLY.unpack(read(pipe, REPLY.size, end))
    longest = bounds.text + len(CUT)
    # UTF-8 takes up to four bytes a character
    if text > 4 * longest or error > 4 * LONGEST_ERROR or number > bounds.pictures:
        raise ValueError("it answered more than it may")
    sizes: list[tuple[int, int]] = [SIZE.unpack(read(pipe, SIZE.size, end)) for _ in range(number)]
    if any(not 0 < width * height <= bounds.pixels for width, height in sizes):
        raise ValueError(f"it answered a picture that has not 1 to {bounds.pixels} pixels")
    said = read(pipe, text, end).decode("utf-8", "replace")[:longest]
    why = " ".join(read(pipe, error, end).decode("utf-8", "replace").split())[:LONGEST_ERROR]
    return Output(said, tuple(Pixels(*size, read(pipe, 3 * size[0] * size[1], end)) for size in sizes), why)


def launch() -> "subprocess.Popen[bytes]":
    """Start a process, in the one thread that does; SandboxError where too many run."""
    if len(_RUNNING) >= MOST:
        raise SandboxError(f"{MOST} sandboxes run in this process, which are the most: let fewer episodes run at a time")
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-P", "-s", "-B", "-m", "mmrl.runtime.sandbox.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        # nothing else of ours: keys lie in environments
        env={**_ONE_THREAD, **libraries, "PYTHONPATH": paths, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"},
        start_new_session=True,
    )
    _RUNNING.add(process.pid)
    assert process.stdin is not None and process.stdout is not None
    for pipe in (process.stdin, process.stdout):
        os.set_blocking(pipe.fileno(), False)
    return process


def stop(process: "subprocess.Popen[bytes]", patience_s: float = 0.0) -> int:
    """The exit code of a process, which is killed with its group if it has not ended by itself within `patience_s`."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    _RUNNING.discard(process.pid)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    return code


def death(code: int) -> str:
    """How it ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
    return f"was killed by {name}"
