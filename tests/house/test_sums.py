"""How much there is in all: sums that cutting at one place and growing at another cannot keep.

`python -m tests.house.test_sums` prints today's sums, and what counts against them.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.house.test_figures import SHELVES

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {
    "lines of mmrl/": 91_762,
    "lines of all shipped Python": 100_502,
    "lines of tests/": 85_120,
    "files of mmrl/ under 60 lines, outside shelves": 28,
    "names that several classes of mmrl/ bear": 11,
    "words of README.md and docs/": 75_000,
}
"""Each falls when something goes; a piece of work raises it by its own budget at most, and says so."""
SHIPPED = ("mmrl", "rewards", "datasets", "environments")
SHORT = 60

Texts = Mapping[str, str]
"""File -> its text."""


def texts(*folders: str) -> dict[str, str]:
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def lines(files: Iterable[str]) -> int:
    return sum(len(text.splitlines()) for text in files)


def short_files(files: Texts) -> list[str]:
    """Files of few lines that stand on no shelf, without those that only make a folder a package."""
    found = {name: len(text.splitlines()) for name, text in files.items() if not name.startswith(tuple(SHELVES))}
    return [f"{name}: {number} lines" for name, number in found.items() if number < SHORT and holds_code(files[name])]


def holds_code(text: str) -> bool:
    """More than a docstring."""
    body = ast.parse(text).body
    return bool(body) and not (len(body) == 1 and isinstance(body[0], ast.Expr))


def shared_names(files: Texts) -> list[str]:
    """Names that several classes bear, with their places; inner classes count too."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, text in files.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{name}:{node.lineno}")
    return [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


def words() -> dict[str, int]:
    """Committed page -> its words, separated by blanks."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {page.relative_to(ROOT).as_posix(): len(page.read_text(encoding="utf-8").split()) for page in pages}


def sums() -> dict[str, tuple[int, list[str]]]:
    """Name of a limit -> today's sum, and what counts against it."""
    mmrl = texts("mmrl")
    short, shared, pages = short_files(mmrl), shared_names(mmrl), words()
    found = {
        "lines of mmrl/": (lines(mmrl.values()), []),
        "lines of all shipped Python": (lines(texts(*SHIPPED).values()), []),
        "lines of tests/": (lines(texts("tests").values()), []),
        f"files of mmrl/ under {SHORT} lines, outside shelves": (len(short), short),
        "names that several classes of mmrl/ bear": (len(shared), shared),
        "words of README.md and docs/": (sum(pages.values()), [f"{page}: {number}" for page, number in pages.items()]),
    }
    assert found.keys() == LIMITS.keys()
    return found


@pytest.fixture(scope="module")
def today() -> dict[str, tuple[int, list[str]]]:
    return sums()


@pytest.mark.parametrize("name", LIMITS)
def test_a_sum_stays_within_its_limit(name: str, today: dict[str, tuple[int, list[str]]]):
    found, against = today[name]
    assert found <= LIMITS[name], "\n".join([f"{name}: {found}, and the limit is {LIMITS[name]}", *against])


def test_what_is_counted():
    files = {"mmrl/a.py": "class A: ...\nclass B:\n    class A: ...\n", "mmrl/b.py": "\n" * 60, "mmrl/__init__.py": '"""It."""\n'}
    files["mmrl/c.py"] = "class B:\n    x = 1\n" + "\n" * 60
    files["mmrl/data/layouts/yolo.py"] = "x = 1\n"
    assert short_files(files) == ["mmrl/a.py: 3 lines"]
    assert shared_names(files) == ["A: mmrl/a.py:1, mmrl/a.py:3", "B: mmrl/a.py:2, mmrl/c.py:1"]
    assert lines(files.values()) == 3 + 60 + 1 + 62 + 1


if __name__ == "__main__":
    for what, (number, against) in sums().items():
        sys.stdout.write("\n".join([f"{what}: {number} (limit {LIMITS[what]})", *(f"  {one}" for one in against)]) + "\n")
