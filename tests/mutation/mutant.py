"""One mutant: a changed place in the text of one function, found by file, function and text, so that it outlives other edits."""

import ast
import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.operators import Function, Slip, functions, slips, walk

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
ROOMS = ("runtime", "core", "algorithms", "flow", "answers", "training", "policies")
LEAST_TEXT = 16
"""Characters of a quoted place, so that a reader sees what it is about."""


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
        head, body, tail = cut(source, found[0])
        if body.count(self.before) != 1:
            raise LookupError(f"{self.file}, {self.function} holds {body.count(self.before)} times: mend or replace {self}")
        return head + body.replace(self.before, self.after) + tail


def cut(source: str, function: Function) -> tuple[str, str, str]:
    """The source before, of and after a function."""
    lines = source.splitlines(keepends=True)
    start, end = function.lineno - 1, function.end_lineno or function.lineno
    return "".join(lines[:start]), "".join(lines[start:end]), "".join(lines[end:])


def load(path: Path = LIST) -> list[Mutant]:
    """The committed list."""
    return [Mutant(**row) for row in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]]


def candidates(file: str, root: Path = ROOT) -> Iterator[Mutant]:
    """Every mutant of a file that one line of text can tell."""
    source = (root / file).read_text(encoding="utf-8")
    for name, function in functions(ast.parse(source)):
        body = cut(source, function)[1]
        for path in walk(function):
            for slip in slips(path[-1]):
                place = quote(source, body, path, slip)
                if place is not None:
                    mutant = Mutant(file, name, slip.operator, *place)
                    if ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source)):
                        yield mutant


def quote(source: str, body: str, path: list[ast.AST], slip: Slip) -> tuple[str, str] | None:
    """Text before and after: the changed node in as much of its surroundings as make it readable and unique."""
    changed = ast.get_source_segment(source, slip.node)
    holders = [*path, slip.node] if slip.node is not path[-1] else path
    found: tuple[str, str] | None = None
    if changed is None or "\n" in changed:
        return None
    for holder in reversed(holders):
        before = ast.get_source_segment(source, holder)
        if before is None or "\n" in before or (found and len(found[0]) >= LEAST_TEXT):
            break
        if before.count(changed) == body.count(before) == 1:
            found = before, before.replace(changed, slip.text)
    return found


def draw(files: list[str], count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """Draw `count` mutants: one per function in turn, the functions in a random order, operators as even as may be."""
    chance = random.Random(seed)
    by_function: dict[tuple[str, str], list[Mutant]] = {}
    for file in files:
        for mutant in candidates(file, root):
            by_function.setdefault((mutant.file, mutant.function), []).append(mutant)
    drawn: list[Mutant] = []
    used: dict[str, int] = {}
    while by_function and len(drawn) < count:
        for key in chance.sample(sorted(by_function), len(by_function)):
            chance.shuffle(by_function[key])
            by_function[key].sort(key=lambda mutant: used.get(mutant.operator, 0))
            mutant = by_function[key].pop(0)
            used[mutant.operator] = used.get(mutant.operator, 0) + 1
            drawn.append(mutant)
            if not by_function[key]:
                del by_function[key]
            if len(drawn) == count:
                break
    return sorted(drawn, key=lambda mutant: (ROOMS.index(mutant.room), mutant.file, mutant.function))
