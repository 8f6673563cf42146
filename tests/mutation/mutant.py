"""One mutant: a changed place in the text of one function, found by file, function and text, so that it outlives other edits."""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
ROOMS = ("runtime", "core", "algorithms", "flow", "answers", "training", "policies")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """`before` stands exactly once in the function of the file; the mutant has `after` there."""

    file: str
    function: str
    operator: str
    before: str
    after: str
    equivalent: str = ""
    """The reason why no test can tell it from the original; empty for the others."""
    near: str = ""
    """A test file to run first, where the tests that reach the place do so through fixtures, which imports do not show."""

    @property
    def room(self) -> str:
        return self.file.split("/")[1]

    def applied(self, source: str) -> str:
        """The source of the file with the mistake in it.

        Raises:
            LookupError: the function is gone, or does not hold `before` exactly once.
        """
        found = [node for name, node in functions(ast.parse(source)) if name == self.function]
        if len(found) != 1:
            raise LookupError(f"{self.file} has {len(found)} functions {self.function}: mend or replace the mutant {self}")
        lines = source.splitlines(keepends=True)
        start, end = found[0].lineno - 1, found[0].end_lineno
        body = "".join(lines[start:end])
        if body.count(self.before) != 1:
            raise LookupError(f"{self.file}, {self.function} holds {body.count(self.before)} times: mend or replace {self}")
        return "".join([*lines[:start], body.replace(self.before, self.after), *lines[end:]])


def load(path: Path = LIST) -> list[Mutant]:
    """The committed list."""
    return [Mutant(**row) for row in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]]


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """All functions of a module by their dotted names, methods and inner ones too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            yield from functions(node, prefix)
