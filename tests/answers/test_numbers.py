"""Numbers of answers: readable ones, unreadable ones, round trips, nearness, and texts made to be slow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.answers.numbers import Number, is_close, parse_number, regression_score, relative_accuracy

NUMBERS = {
    "3": 3, "3.0": 3, "-3.5": -3.5, "\u22124": -4, "+2": 2, "1,250.5 kg": 1250.5, "1e3": 1000, "3/4": 0.75, "$1,000$": 1000,
    "\\boxed{\\frac{1}{3}}": 1 / 3, "$\\frac{1}{2}$": 0.5, "three": 3, "Twelve apples": 12, "2 + 3 = 5": 5, "3 and 3": 3,
    "The answer is 7": 7, "there are 12.": 12, "<think>9</think><answer>4</answer>": 4, "7 cm": 7,
    "abc": None, "": None, "3 dogs and 2 cats": None, "3 or 4": None, "1,0": None, "x2": None, "1e999": None, "1/0": None,
    "B": None,
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_numbers(text, value):
    number = parse_number(text)
    assert (number and number.value) == value


@given(
    st.floats(-1e9, 1e9, allow_subnormal=False), st.sampled_from(["{:.6f}", "{:,.6f}", "{:.12e}", "<answer>{:.6f} m</answer>"])
)
def test_written_numbers_are_read(value, form):
    number = parse_number(form.format(value))
    assert number is not None and number.value == pytest.approx(value, rel=1e-6, abs=1e-6)


def test_tolerances_are_inclusive():
    assert is_close(Number(10.5), Number(10.0), relative=0.05) and not is_close(Number(10.51), Number(10.0), relative=0.05)
    assert is_close(Number(10.2), Number(10.0), absolute=0.2) and not is_close(Number(9.7), Number(10.0), absolute=0.2)
    assert is_close(Number(0.1 + 0.2), Number(0.3)) and not is_close(Number(3.001), Number(3.0))
    assert not is_close(Number(-10.0), Number(10.0), relative=0.5)


def test_percent_beside_bare_numbers():
    half = Number(0.5, True)
    assert parse_number("50%") == half and is_close(half, Number(0.5)) and is_close(half, Number(50.0))
    assert is_close(Number(50.0), half) and is_close(half, half) and not is_close(half, Number(5.0))


def test_nearness_of_numbers():
    assert regression_score(Number(11.0), Number(10.0)) == pytest.approx(0.9)
    assert regression_score(Number(25.0), Number(10.0)) == 0 and regression_score(Number(0.0), Number(0.0)) == 1
    # 12 % off: below 1 - t for t = .5 .. .85, eight of ten
    assert relative_accuracy(Number(11.2), Number(10.0)) == pytest.approx(0.8)
    assert relative_accuracy(Number(10.0), Number(10.0)) == 1 and relative_accuracy(Number(16.0), Number(10.0)) == 0
    # a percent sign of one side read as a unit: 41 beside 50 is 18 % off, below 1 - t for t = .5 .. .8, seven of ten
    assert relative_accuracy(Number(0.41, True), Number(50.0)) == pytest.approx(0.7)
    assert relative_accuracy(Number(41.0), Number(0.5, True)) == pytest.approx(0.7)


HOSTILE = ["A, " * 50_000 + "x", "answer is " * 50_000, "(" * 100_000, "A\n" * 50_000, "1," * 50_000, "1/" * 50_000]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_texts_end(hostile):
    parse_number(hostile)
