"""Nothing grows past what a reader holds in mind: files, functions, classes, arguments."""

import ast
from pathlib import Path

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
