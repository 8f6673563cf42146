"""Letters of a multiple choice: readable ones, unreadable ones, round trips, levels, and texts made to be slow."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.answers.choices import LETTERS, choice_score, parse_choices
from tests.support.each import for_each

CHOICES = {
    "A": "A", "(A)": "A", "A.": "A", "**A**": "A", "[A, C]": "AC", "A, C": "AC", "C,A": "AC", "A and C": "AC", "A; C.": "AC",
    "ACD": "ACD", "B. a dog": "B", "(B) a dog": "B", "A. cat\nC. dog": "AC", "The answer is B.": "B", "answer: (C)": "C",
    "The correct options are A and C.": "AC", "Option D": "D", "the answer is **B**": "B", "<answer>A,B</answer>": "AB",
    "<answer>A</answer><answer>B</answer>": "B", "<think>A</think> B": "B", "I": "I",
    "": "", "a": "", "none": "", "I think so": "", "A dog": "", "CAB": "", "AND": "", "I do not know": "",
    "(A) cat (B) dog. Answer: B": "B", "A) is wrong. The answer is B.": "B", "A. No, the answer is B.": "B",
    "(B) a dog or a cat": "B", "(A) or (B)": "", "A. or B.": "", "Answer: (B) or (C)": "",
    "<answer></answer>": "", "I know: it was Ann": "", "The answer is a dog": "", "see option two": "", "<think>B</think>": "",
}  # fmt: skip


@pytest.mark.parametrize(("text", "letters"), CHOICES.items())
def test_letters(text, letters):
    assert parse_choices(text) == frozenset(letters)


def answers_of_models() -> Iterator[tuple[str, str, list[str], str]]:
    """Texts, the letters they state, options and where the form was seen."""
    table = tomllib.loads((Path(__file__).parent / "choices_of_models.toml").read_text(encoding="utf-8"))
    for source in table["source"]:
        for text, letters, *options in source["rows"]:
            yield text, letters, options[0] if options else [f"Point {letter}" for letter in "ABCD"], source["at"]


@for_each("text, letters, options, source", answers_of_models(), ids=lambda text, *rest: repr(text))
def test_an_answer_of_a_model_pays_for_the_letters_it_states(text, letters, options, source):
    read, stated = parse_choices(text, options), frozenset(letters)
    wrong = [letter for letter in LETTERS[: len(options)] if frozenset(letter) != stated]
    assert not any(choice_score(read, frozenset(letter), soft) for letter in wrong for soft in (False, True)) or len(stated) > 1
    assert read == stated, f"read as {sorted(read)}; {source}"


def test_the_table_is_large_and_named():
    rows = list(answers_of_models())
    assert len(rows) >= 160 and sum(bool(letters) for _, letters, _, _ in rows) >= 130
    assert all(source.startswith(("https://github.com/", "search for ", "written for ")) for *_, source in rows)


def test_options_bound_the_letters_and_may_be_quoted():
    assert parse_choices("a Dog.", ["cat", "a dog"]) == {"B"} and parse_choices("bird", ["cat", "a dog"]) == frozenset()
    assert parse_choices("C", ["cat", "a dog"]) == frozenset() and parse_choices("A,C", ["cat", "a dog"]) == frozenset()
    assert parse_choices("I", ["x"] * 8) == frozenset()


@given(st.sets(st.sampled_from(LETTERS[:8]), min_size=1), st.sampled_from([",", ", ", " and ", "; ", "\n"]))
def test_written_letters_are_read(letters, between):
    assert parse_choices(f"<answer>{between.join(sorted(letters, reverse=True))}</answer>") == letters


def test_levels_of_a_choice():
    right = frozenset("ABC")
    levels = {"ABC": 1, "AB": 2 / 3, "A": 1 / 3, "AD": 0, "ABCD": 0, "": 0}
    assert {text: choice_score(frozenset(text), right, True) for text in levels} == levels
    assert [choice_score(frozenset(text), right, False) for text in levels] == [1, 0, 0, 0, 0, 0]


HOSTILE = [
    "A, " * 50_000 + "x",
    "A and " * 50_000,
    "the correct answer to " * 20_000,
    "A\n\n" * 50_000 + "A is",
    "answer is " * 50_000,
    "(" * 100_000,
    "A\n" * 50_000,
    "1," * 50_000,
    "1/" * 50_000,
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_texts_end(hostile):
    parse_choices(hostile)
