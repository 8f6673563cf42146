"""Nothing grows past what a reader holds in mind: files, functions, classes, arguments, and the vocabulary of core."""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from mmrl.core.types import Request
from tests.support.each import for_each

ROOT = Path(__file__).parents[2]
FILES = sorted(file for room in ("mmrl", "rewards", "datasets", "environments") for file in (ROOT / room).rglob("*.py"))
MOST = {"file": 500, "function": 60, "class": 250, "arguments": 8}
Function = ast.FunctionDef | ast.AsyncFunctionDef


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
