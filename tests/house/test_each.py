"""A test that looks at many things tells the faults of all of them."""

from pathlib import Path

import pytest

from tests.support.each import for_each
from tests.support.refused import refused


@for_each("number, word", [(1, "a"), (2, "b")])
def test_fixtures_are_given_to_every_case(number: int, word: str, tmp_path: Path):
    (tmp_path / word).write_text(str(number))
    assert len(list(tmp_path.iterdir())) == number


def test_the_faults_of_all_cases_are_told():
    @for_each("number", range(5), ids=lambda number: f"case {number}")
    def look(number: int) -> None:
        if number == 3:
            raise KeyError("three")
        assert number % 2 == 0, f"{number} is odd"

    told = refused("2 of 5 are wrong", look, error=pytest.fail.Exception)
    lines = str(told.value).splitlines()
    assert [line for line in lines if line.startswith("case 1: 1 is odd")]
    assert [line for line in lines if line.startswith("case 3: KeyError: 'three' (test_each.py:")]


def test_what_fails_inside_a_case_is_a_fault_of_it():
    @for_each("number", [0])
    def look(number: int) -> None:
        with pytest.raises(ValueError, match="x"):
            pass

    refused(r"0: DID NOT RAISE.*ValueError", look, error=pytest.fail.Exception)


def test_nothing_to_look_at_is_a_fault():
    look = for_each("number", [])(lambda number: None)
    refused("nothing to look at", look, error=AssertionError)
