"""The shape of mmrl/ in figures, kept by limits: files per folder, `Any`, first words of docstrings, long functions, core.

`python tests/house/test_figures.py` prints today's figures and every name that counts against a limit.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import pytest

from mmrl.core.types import Request
from tests.support.each import for_each

ROOT = Path(__file__).parents[2]
LIMITS: dict[str, float] = {  # limits only ever fall
    "files in one room": 16,
    "files on one shelf": 22,
    "files that a step of tiny/image enters": 56,
    "Any per 1,000 lines": 5.05,
    "Any per 1,000 lines: app": 10,
    "Any per 1,000 lines: core": 6.5,
    "Any per 1,000 lines: policies": 9.4,
    "Any per 1,000 lines: training": 6,
    "Any per 1,000 lines: any other room": 5,
    "docstrings that begin with Of, As, What, Inside or Whether": 0,
}
SHELVES = {
    *("mmrl/algorithms/advantages", "mmrl/algorithms/presets", "mmrl/app/commands", "mmrl/data/layouts"),
    *("mmrl/policies/flow/families", "mmrl/policies/text/families"),
}
"""Folders of equal things, one a file, which may be longer than a room."""
FIRST_WORDS = {"Of", "As", "What", "Inside", "Whether"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """A file of mmrl/, read once."""

    name: str
    room: str
    lines: int
    tree: ast.Module


def sources() -> list[Source]:
    """All files of mmrl/; files beside the rooms count as a room of their own."""
    found: list[Source] = []
    for file in sorted((ROOT / "mmrl").rglob("*.py")):
        parts = file.relative_to(ROOT / "mmrl").parts
        text = file.read_text()
        room = parts[0] if len(parts) > 1 else "."
        found.append(Source(file.relative_to(ROOT).as_posix(), room, len(text.splitlines()), ast.parse(text)))
    return found


def files_per_folder() -> Counter[str]:
    """Folder -> how many Python files it holds, `__init__.py` included."""
    return Counter(file.parent.relative_to(ROOT).as_posix() for file in (ROOT / "mmrl").rglob("*.py"))


def count_any(tree: ast.AST) -> int:
    """How often the name `Any` is used, imports aside; in annotations that are strings too."""
    names = [getattr(node, "id", None) or getattr(node, "attr", None) for node in ast.walk(tree)]
    return names.count("Any") + sum(len(re.findall(r"\bAny\b", text)) for text in text_annotations(tree))


def text_annotations(tree: ast.AST) -> Iterator[str]:
    """The text of every annotation, or part of one, that is a string."""
    for node in ast.walk(tree):
        annotations = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for annotation in annotations:
            parts = ast.walk(annotation) if isinstance(annotation, ast.AST) else ()
            yield from (part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))


def any_per_room(files: list[Source]) -> dict[str, float]:
    """Room -> uses of `Any` per 1,000 lines; `all` is the whole of mmrl/."""
    uses, lines = Counter[str](), Counter[str]()
    for file in files:
        found = count_any(file.tree)
        for room in (file.room, "all"):
            uses[room] += found
            lines[room] += file.lines
    return {room: 1000 * uses[room] / lines[room] for room in sorted(lines)}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings of a file, its classes and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and (text := ast.get_docstring(node)):
            yield (1 if isinstance(node, ast.Module) else node.lineno), text


def odd_docstrings(files: list[Source]) -> list[str]:
    """`file:line first line` of docstrings that begin with a word that begins no sentence about the thing itself."""
    return [
        f"{f.name}:{line} {text.splitlines()[0]}"
        for f in files
        for line, text in docstrings(f.tree)
        if re.split(r"\W", text, maxsplit=1)[0] in FIRST_WORDS
    ]


@pytest.fixture(scope="module")
def files() -> list[Source]:
    """Read where a test asks: each worker imports this file, and one runs it."""
    return sources()


def test_no_folder_is_a_heap():
    most = {True: LIMITS["files on one shelf"], False: LIMITS["files in one room"]}
    counts = files_per_folder()
    assert {folder: count for folder, count in counts.items() if count > most[folder in SHELVES]} == {}
    assert set(counts) >= SHELVES


def test_any_is_rare(files: list[Source]):
    found = any_per_room(files)
    assert found.pop("all") <= LIMITS["Any per 1,000 lines"]
    other = LIMITS["Any per 1,000 lines: any other room"]
    assert {room: rate for room, rate in found.items() if rate > LIMITS.get(f"Any per 1,000 lines: {room}", other)} == {}


def test_docstrings_are_sentences_about_the_thing(files: list[Source]):
    found, limit = odd_docstrings(files), LIMITS["docstrings that begin with Of, As, What, Inside or Whether"]
    assert len(found) <= limit, "\n".join(["say what the thing does or is:", *found])


def test_what_is_counted():
    lines = ["from typing import Any", "x: 'list[Any]'", "def _told(a: Any) -> dict[str, Any]: ...", "def seed() -> None: ..."]
    tree = ast.parse("\n".join(lines))
    assert count_any(tree) == 3
    doc = Source("f.py", ".", 2, ast.parse('"""Of things."""\ndef f():\n    """Offers things."""\n'))
    assert odd_docstrings([doc]) == ["f.py:1 Of things."]


def report() -> list[str]:
    """Today's figures, one a line, and below each what counts against it."""
    rooms, shelves = (
        [(count, name) for name, count in files_per_folder().items() if (name in SHELVES) == kind] for kind in (False, True)
    )
    files = sources()
    odd = odd_docstrings(files)
    return [
        "files in one room: at most {} ({})".format(*max(rooms)),
        "files on one shelf: at most {} ({})".format(*max(shelves)),
        *(f"Any per 1,000 lines, {room}: {value:.1f}" for room, value in any_per_room(files).items()),
        f"docstrings that begin with Of, As, What, Inside or Whether: {len(odd)}",
        *(f"  {line}" for line in odd),
    ]


FILES = sorted(file for room in ("mmrl", "rewards", "datasets", "environments") for file in (ROOT / room).rglob("*.py"))
MOST = {"file": 500, "function": 60, "class": 250, "arguments": 8}


def num_arguments(function: Function) -> int:
    """Without self and cls."""
    own = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([argument for argument in own if argument.arg not in ("self", "cls")])


def excesses(source: str) -> list[str]:
    """Everything that is too large, each with its line."""
    found = [f"file of {lines} lines"] if (lines := len(source.splitlines())) > MOST["file"] else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function | ast.ClassDef):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            found += [f"{node.lineno}: {kind} {node.name} of {length} lines"] if length > MOST[kind] else []
        if isinstance(node, Function) and num_arguments(node) > MOST["arguments"] and not is_command(node):
            found.append(f"{node.lineno}: {node.name} takes {num_arguments(node)} arguments")
    return found


def is_command(function: Function) -> bool:
    """A command's options are its arguments; nobody calls it with them."""
    return any(
        isinstance(d, ast.Call) and isinstance(d.func, ast.Attribute) and d.func.attr == "command"
        for d in function.decorator_list
    )


@for_each("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_within_budget(file: Path):
    assert excesses(file.read_text()) == []


def test_a_long_function_and_nine_arguments_are_found():
    body = "\n".join(f"    x{i} = {i}" for i in range(60))
    source = f"def f(a, b, c, d, e, f, g, h, i):\n{body}\n"
    assert excesses(source) == ["1: function f of 61 lines", "1: f takes 9 arguments"]


CORE = sorted((ROOT / "mmrl" / "core").rglob("*.py"))
MOST_OF_CORE = {"lines": 1711, "files": 9, "protocols": 18, "fields of Request": 11}


def is_protocol(node: ast.AST) -> bool:
    """Does a class derive from Protocol itself, with or without parameters?"""
    if not isinstance(node, ast.ClassDef):
        return False
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases)


def figures() -> dict[str, int]:
    texts = [file.read_text() for file in CORE]
    return {
        "lines": sum(len(text.splitlines()) for text in texts),
        "files": len(CORE),
        "protocols": sum(map(is_protocol, (node for text in texts for node in ast.walk(ast.parse(text))))),
        "fields of Request": len(fields(Request)),
    }


@pytest.mark.parametrize("name", MOST_OF_CORE)
def test_core_is_within_its_limit(name: str):
    found = figures()[name]
    assert found <= MOST_OF_CORE[name], f"{name}: {found}; move what one room alone uses to that room"


def test_protocols_are_found():
    tree = ast.parse("class A(Protocol): ...\nclass B(Protocol[T]): ...\nclass C(A): ...")
    assert [is_protocol(node) for node in tree.body] == [True, True, False]


if __name__ == "__main__":
    print("\n".join(report()))  # noqa: T201 - the figures are the command's result
