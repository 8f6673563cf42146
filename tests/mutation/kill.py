"""One mutant against the fast tests of its room, in a copy of the tree, in a process that has imported the libraries before."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.changed import MARKS, imports, is_test, mirror, modules
from tests.mutation.mutant import ROOT, Mutant

LIMIT_S = 60.0
"""For one mutant."""
BESIDE = {"algorithms": ["tests/numerics"], "flow": ["tests/numerics"], "answers": ["tests/numerics"]}
"""Rooms whose formulas are compared with other programs' numbers in a folder of its own."""
PRELOADED = ["torch", "transformers", "hypothesis", "beartype", "jaxtyping", "scipy.stats", "diffusers", "peft", "pytest"]
FAILED = 1
"""The exit code of pytest when tests failed; collection that fails gives 2."""
Outcome = Literal["killed", "survived", "no verdict"]


@dataclass(frozen=True)
class Verdict:
    """How a mutant ended: the test that failed first, or the reason why none did."""

    mutant: Mutant
    outcome: Outcome
    why: str
    seconds: float


def copy_tree(place: Path, root: Path = ROOT) -> Path:
    """Copy the files that git knows or would add, without history and environment."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, place / name)
    return place


def tests_of(file: str, root: Path = ROOT) -> list[str]:
    """Test files to run for a module: those of its room that import it, others that do, then the rest of the room's.

    Within each kind, those come first that import fewest modules, for they are about this one.
    """
    known = modules(root)
    names = {path: name for name, path in known.items()}
    own = names[root / file]
    room = [root / place for place in [mirror(root / file, root) or "", *BESIDE.get(Path(file).parts[1], [])] if place]
    ranked: list[tuple[bool, bool, int, str]] = []
    for path in filter(is_test, known.values()):
        used = imports(path, known)
        inside = any(path.is_relative_to(folder) for folder in room)
        if inside or own in used:
            ranked.append((own not in used, not inside, len(used), path.relative_to(root).as_posix()))
    return [name for *_, name in sorted(ranked)]


def hunt(mutant: Mutant, tree: Path, limit_s: float = LIMIT_S) -> Verdict:
    """Put the mutant into the tree, run its tests until one fails or the time is over, and put the original back."""
    file = tree / mutant.file
    source = file.read_text(encoding="utf-8")
    try:
        file.write_text(mutant.applied(source), encoding="utf-8")
        forget_bytecode(file)
        return judge(mutant, tree, tests_of(mutant.file, tree), limit_s)
    finally:
        file.write_text(source, encoding="utf-8")
        forget_bytecode(file)


def forget_bytecode(file: Path) -> None:
    """Compiled files are known by second and size, which a mutant may share with its original."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


def judge(mutant: Mutant, tree: Path, tests: list[str], limit_s: float) -> Verdict:
    """Run these tests and say how it ended; code that no longer loads counts as killed only where a test says so."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    log = tree / "mutation.log"
    process = context.Process(target=run_tests, args=(str(tree), tests, str(log)))
    start = time.monotonic()
    process.start()
    process.join(limit_s)
    seconds = time.monotonic() - start
    late = process.is_alive()
    if late and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    text = log.read_text(encoding="utf-8", errors="replace")
    failures = [line for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if failures:
        return Verdict(mutant, "killed", failures[0].split(" - ")[0], seconds)
    if late:
        return Verdict(mutant, "survived", f"no test failed within {limit_s:g} s", seconds)
    if process.exitcode == 0:
        return Verdict(mutant, "survived", "all tests pass", seconds)
    return Verdict(mutant, "no verdict", f"exit code {process.exitcode}: {text[-300:]}", seconds)


def run_tests(tree: str, tests: list[str], log: str) -> None:
    """Run in a process of its own: the tests of the tree, with everything of mmrl and its tests imported from there."""
    os.setsid()
    os.chdir(tree)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mmrl", "tests")]:
        del sys.modules[name]
    sys.path.insert(0, tree)
    os.environ["PYTHONPATH"] = tree
    import pytest

    # instant: a mutant that never ends must have named its first failure by then
    words = ["-q", "-x", "-p", "no:cacheprovider", "-m", MARKS, *tests]
    code = pytest.main(words)
    sys.stdout.flush()
    os._exit(int(code))
