"""The committed mutants still fit the code, and the machinery that applies them does what it says."""

import ast
from collections import Counter
from functools import cache

import pytest

from tests.mutation.kill import files_for, files_to_run, portions
from tests.mutation.mutant import ROOMS, ROOT, Mutant, load

MUTANTS = load()
SOURCE = '''"""A module."""


def f(x, y):
    """x - y, of numbers above 0."""
    if x > 0 and y > 0:
        return x - 2 * y
    return max(x, y)


class C:
    def f(self, x):
        self.x = x
        return x + 1
'''


@cache
def source_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def dump_of(source: str) -> str:
    return ast.dump(ast.parse(source))


@pytest.mark.parametrize("room", ROOMS)
def test_every_mutant_applies(room: str):
    for mutant in [mutant for mutant in MUTANTS if mutant.room == room]:
        source = source_of(mutant.file)
        assert dump_of(mutant.applied(source)) != dump_of(source), mutant


def test_the_list_is_long_enough_and_no_mutant_occurs_twice():
    places = Counter((mutant.file, mutant.function, mutant.before, mutant.after) for mutant in MUTANTS)
    assert len(MUTANTS) >= 120 and max(places.values()) == 1
    assert {mutant.room for mutant in MUTANTS} == set(ROOMS)
    assert len({mutant.operator for mutant in MUTANTS}) >= 10


def test_the_file_that_a_mutant_names_runs_first():
    named = [mutant for mutant in MUTANTS if mutant.near]
    assert named and all((ROOT / mutant.near).is_file() for mutant in named)
    for mutant in named:
        files = files_for(mutant)
        assert files[0] == mutant.near and sorted(files) == sorted({*files_to_run(mutant.file), mutant.near})


def test_a_mutant_is_found_by_its_text_wherever_the_function_stands():
    mutant = Mutant("m.py", "C.f", "arithmetic", "x + 1", "x - 1")
    moved = SOURCE.replace("class C", "# one line more\n\nclass C")
    assert mutant.applied(moved) == moved.replace("x + 1", "x - 1")


@pytest.mark.parametrize(("function", "before"), [("g", "x + 1"), ("C.f", "x - 2 * y"), ("C.f", "x")])
def test_a_mutant_that_no_longer_fits_is_refused(function: str, before: str):
    with pytest.raises(LookupError, match=r"m\.py.*mend or replace"):
        Mutant("m.py", function, "arithmetic", before, "0").applied(SOURCE)


def test_the_nearest_tests_come_first():
    found = files_to_run("mmrl/training/watch/ratio_gate.py")
    assert found[0] == "tests/training/watch/test_ratio_gate.py" and "tests/training/test_trainer.py" in found
    assert [test for part in portions(found) for test in part] == found
