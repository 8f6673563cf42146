"""One mutant against the fast tests of its room, in a copy of the tree, in a process that has imported the libraries before."""

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from tests.changed import CHECKED, MARKS, beside_app, imports, is_test, mirror, modules, users
from tests.mutation.mutant import ROOT, Mutant

LIMIT_S = 60.0
"""For one mutant."""
PASSED = (0, 5)
"""Exit codes of pytest: all passed, and nothing was left to run."""
NEAREST = 4
"""Test files that are tried before others are looked at."""
BESIDE = {"algorithms": ["tests/numerics"], "flow": ["tests/numerics"], "answers": ["tests/numerics"]}
"""Rooms whose formulas are compared with other programs' numbers in a folder of its own."""
PRELOADED = ["torch", "transformers", "scipy.stats", "diffusers", "peft"]
FAILURE = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::[^\n]*?)?)(?: - .*)?$", re.MULTILINE)
"""A line of pytest's summary: the test's name, which may hold blanks."""
NO_CONFTEST = "ImportError while loading conftest"
"""What pytest says in place of a summary where the tests of a folder cannot even begin."""
Outcome = Literal["killed", "survived", "no verdict"]


@dataclass(frozen=True)
class Verdict:
    """How a mutant ended: the test that failed first, or the reason why none did."""

    mutant: Mutant
    outcome: Outcome
    why: str
    seconds: float


def copy_tree(place: Path) -> Path:
    """Copy the files that git knows or would add, without history and environment."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    return place


@cache
def files_to_run(file: str) -> list[str]:
    """Test files to run for a module: those of its room and of rooms that import it, and all that import it themselves.

    First what bears its name, then those that are fewest imports away from it, then those of its own room, then those that
    import least.
    """
    known, graph = import_graph()
    own = next(name for name, path in known.items() if path == ROOT / file)
    away = distances(own, graph)
    near = {own, *users({own}, graph)}
    mirrored = {mirror(known[name], ROOT) or "" for name in near if name.startswith("mmrl.")} - {""}
    rooms = [ROOT / place for place in [*mirrored, *beside_app(mirrored), *BESIDE.get(Path(file).parts[1], [])]]
    home = ROOT / (mirror(ROOT / file, ROOT) or "tests")
    ranked: list[tuple[bool, int, bool, int, str]] = []
    for name, path in known.items():
        if is_test(path) and (away.get(name) == 1 or any(path.is_relative_to(room) for room in rooms)):
            far = away.get(name, len(known))
            inside = path.is_relative_to(home)
            called = inside and path.stem.startswith(f"test_{Path(file).stem}")
            ranked.append((not called, far, not inside, len(graph[name]), path.relative_to(ROOT).as_posix()))
    return [name for *_, name in sorted(ranked)]


@cache
def import_graph() -> tuple[dict[str, Path], dict[str, set[str]]]:
    """Module -> file, and module -> the modules it imports."""
    known = modules(ROOT)
    return known, {name: imports(path, known) for name, path in known.items()}


def distances(own: str, graph: dict[str, set[str]]) -> dict[str, int]:
    """Module -> through how many imports it reaches `own`."""
    found, edge = {own: 0}, {own}
    while edge:
        edge = users(edge, graph) - found.keys()
        found |= dict.fromkeys(edge, max(found.values()) + 1)
    return found


def hunt(mutant: Mutant, tree: Path, limit_s: float = LIMIT_S) -> Verdict:
    """Put the mutant into the tree, run its tests until one fails or the time is over, and put the original back.

    A test that fails without the mutant, too, gives no verdict.
    """
    file = tree / mutant.file
    source = file.read_text(encoding="utf-8")
    try:
        file.write_text(mutant.applied(source), encoding="utf-8")
        forget_bytecode(file)
        start = time.monotonic()
        ended = Ended(0, None, "no tests")
        for part in portions(files_for(mutant)):
            ended = run_apart(tree, part, limit_s - (time.monotonic() - start))
            if ended.code not in PASSED:
                break
        seconds = time.monotonic() - start
    finally:
        file.write_text(source, encoding="utf-8")
        forget_bytecode(file)
    if ended.failed is None:
        return Verdict(mutant, "survived" if ended.code in (*PASSED, None) else "no verdict", ended.words, seconds)
    sound = run_apart(tree, [ended.failed], limit_s)
    if sound.code != 0:
        return Verdict(mutant, "no verdict", f"{ended.failed} fails without the mutant, too: {sound.words}", seconds)
    return Verdict(mutant, "killed", ended.failed, seconds)


def files_for(mutant: Mutant) -> list[str]:
    """Those of its module, the one that the mutant names first."""
    named = [mutant.near] if mutant.near else []
    return [*named, *(file for file in files_to_run(mutant.file) if file not in named)]


def portions(tests: list[str]) -> list[list[str]]:
    """The nearest files, some more, and the rest: pytest imports all that it is given before it runs the first test."""
    return [part for part in (tests[:NEAREST], tests[NEAREST : 4 * NEAREST], tests[4 * NEAREST :]) if part]


def forget_bytecode(file: Path) -> None:
    """Compiled files are known by second and size, which a mutant may share with its original."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


class Ended(NamedTuple):
    """A run of pytest: its exit code (None: stopped at the limit), the test that failed, and what it said last."""

    code: int | None
    failed: str | None
    words: str


def run_apart(tree: Path, tests: list[str], limit_s: float) -> Ended:
    """Run these tests in a process of its own until one fails."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    log = tree / "mutation.log"
    log.write_text("", encoding="utf-8")
    process = context.Process(target=run_tests, args=(str(tree), tests, str(log)))
    process.start()
    process.join(limit_s)
    late = process.is_alive()
    if late and process.pid is not None:
        with suppress(ProcessLookupError):  # it ended meanwhile, or leads no group yet
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
    text = log.read_text(encoding="utf-8", errors="replace")
    failed = FAILURE.search(text)
    if failed:
        return Ended(process.exitcode, failed[1], failed[0])
    if NO_CONFTEST in text:
        return Ended(process.exitcode, tests[0], text[:300])
    if late:
        return Ended(None, None, "no test failed in time")
    return Ended(process.exitcode, None, "all tests pass" if process.exitcode in PASSED else text[-300:])


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
    os.environ.update(CHECKED, PYTHONPATH=tree)
    # compiled files of the copy make every run but the first start in seconds
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    import pytest

    words = ["-q", "-x", "-rfE", "-p", "no:cacheprovider", "-m", MARKS, *tests]
    code = pytest.main(words)
    sys.stdout.flush()
    os._exit(int(code))
