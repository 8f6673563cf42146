"""An attack on mmrl: something hostile or careless is done to it, and the outcome is judged."""

import os
import resource
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MEMORY = 8 << 30
LIMIT_S = 60.0
LONGEST_MESSAGE = 2000
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
    """A program that ended: its exit code (negative: the signal), what it wrote, and its seconds."""

    code: int
    out: str
    err: str
    seconds: float


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def run_mmrl(
    arguments: Sequence[str],
    folder: Path,
    limit_s: float = LIMIT_S,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    before: Callable[[], None] = limit_memory,
) -> Ended:
    """Run `mmrl ARGUMENTS` in a folder, offline and with bounded memory; AssertionError after `limit_s` seconds.

    Args:
        before: called in the new process, to limit it.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "mmrl", *arguments],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=before,
    )
    try:
        out, err = process.communicate(stdin, timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise AssertionError(f"did not end within {limit_s:g} s") from None
    return Ended(process.returncode, out, err, time.monotonic() - start)


def expect_sentence(ended: Ended, *words: str) -> str:
    """Expect exit code 2 and one sentence on stderr that holds all `words`, without traceback or control characters."""
    assert ended.code == 2, f"exit code {ended.code}: {ended.err[-300:]!r}"
    assert "Traceback" not in ended.err, f"a traceback: {ended.err[-300:]!r}"
    missing = [word for word in words if word not in ended.err]
    assert not missing, f"the message does not name {missing}: {ended.err[-300:]!r}"
    expect_clean(ended.out + ended.err)
    message = ended.err.strip().splitlines()[-1]
    assert len(message) <= LONGEST_MESSAGE, f"a message of {len(message)} characters"
    return "refused"


def expect_done(ended: Ended, *words: str) -> str:
    """Expect exit code 0 and output that holds all `words`."""
    assert ended.code == 0, f"exit code {ended.code}: {ended.err[-300:]!r}"
    missing = [word for word in words if word not in ended.out + ended.err]
    assert not missing, f"the output does not name {missing}: {(ended.out + ended.err)[-300:]!r}"
    return "done"


def expect_clean(text: str) -> None:
    """Expect no control characters but line ends and tabs (colours are off where nobody looks)."""
    odd = {character for character in text if ord(character) < 32 and character not in "\n\r\t"}
    assert not odd, f"control characters reached the terminal: {sorted(map(ord, odd))}"
