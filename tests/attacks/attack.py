"""An attack on mmrl: something hostile or careless is done to it, and the outcome is judged."""

import os
import resource
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from mmrl.app.toml.tables import said_last

MEMORY = 8 << 30
LIMIT_S = 60.0
LONGEST_MESSAGE = 2000
P = ParamSpec("P")
T = TypeVar("T")
LOADING = RLock()
"""Libraries fail where two threads load a model at once, and put a whole process on the meta device meanwhile."""
OUTCOMES = Path(__file__).with_name("outcomes.toml")
"""Written by `make attack`."""


def outcomes() -> dict[str, dict[str, str]]:
    """Area -> name -> outcome of every attack when it was last carried out."""
    return tomllib.loads(OUTCOMES.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Attack:
    """One attack. `run` gets an empty folder and returns the outcome in a few words; an assertion fails if mmrl does."""

    area: str
    name: str
    run: Callable[[Path], str]


@dataclass(frozen=True)
class Ended:
    """A program that ended: its exit code (negative: the signal), and what it wrote."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Bomb:
    """Leaves a file where it is unpickled."""

    fuse: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.fuse,))


def once(make: Callable[P, T]) -> Callable[P, T]:
    """What attacks that run side by side share, made by the first that asks for it."""
    made = cache(make)

    @wraps(make)
    def held(*given: P.args, **named: P.kwargs) -> T:
        with LOADING:
            return made(*given, **named)

    return held


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def begin(
    arguments: Sequence[str],
    folder: Path,
    env: Mapping[str, str] | None = None,
    before: Callable[[], None] = limit_memory,
    prefix: Sequence[str] = (),
    **streams: Any,
) -> "subprocess.Popen[str]":
    """Start `mmrl ARGUMENTS` in a folder and a session of its own, offline and with bounded memory; of a key the last value.

    Args:
        before: called in the new process, to limit it.
        prefix: the words of a program that runs it.
    """
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "mmrl", *said_last(arguments)],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **(env or {})},
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=before,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


def run_mmrl(arguments: Sequence[str], folder: Path, limit_s: float = LIMIT_S, **how: Any) -> Ended:
    """The same until its end; AssertionError after `limit_s` seconds."""
    process = begin(arguments, folder, **how)
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise AssertionError(f"did not end within {limit_s:g} s") from None
    return Ended(process.returncode, out, err)


def expect_sentence(ended: Ended, *words: str) -> str:
    """Expect exit code 2 and one sentence on stderr that holds all `words`, without traceback or control characters."""
    assert ended.code == 2, f"exit code {ended.code}: {ended.err[-300:]!r}"
    assert "Traceback" not in ended.err, f"a traceback: {ended.err[-300:]!r}"
    expect_words(ended.err, words)
    expect_clean(ended.out + ended.err)
    message = ended.err.strip().splitlines()[-1]
    assert len(message) <= LONGEST_MESSAGE, f"a message of {len(message)} characters"
    return "refused"


def expect_done(ended: Ended, *words: str) -> str:
    """Expect exit code 0 and output that holds all `words`."""
    assert ended.code == 0, f"exit code {ended.code}: {ended.err[-300:]!r}"
    expect_words(ended.out + ended.err, words)
    return "done"


def expect_words(said: str, words: Sequence[str]) -> None:
    missing = [word for word in words if word not in said]
    assert not missing, f"it does not name {missing}: {said[-300:]!r}"


def refused(
    command: Sequence[str],
    words: Sequence[str],
    folder: Path,
    files: Mapping[str, str | bytes] | Callable[[Path], object] = MappingProxyType({}),
    **how: Any,
) -> str:
    """`mmrl COMMAND` beside these files, or in the folder after this was done to it, is refused with all these words."""
    if callable(files):
        files(folder)
    else:
        for name, content in files.items():
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return expect_sentence(run_mmrl(command, folder, **how), *words)


def expect_clean(text: str) -> None:
    """Expect no control characters but line ends and tabs (colours are off where nobody looks)."""
    odd = {character for character in text if ord(character) < 32 and character not in "\n\r\t"}
    assert not odd, f"control characters reached the terminal: {sorted(map(ord, odd))}"
