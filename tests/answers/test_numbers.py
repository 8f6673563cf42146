"""Numbers of answers: readable ones, unreadable ones, round trips, nearness, and texts made to be slow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.answers.numbers import Number, is_close, parse_number, regression_score, relative_accuracy
from tests.support.each import for_each

NUMBERS = {
    "3": 3, "3.0": 3, "-3.5": -3.5, "\u22124": -4, "+2": 2, "1,250.5 kg": 1250.5, "1e3": 1000, "3/4": 0.75, "$1,000$": 1000,
    "\\boxed{\\frac{1}{3}}": 1 / 3, "$\\frac{1}{2}$": 0.5, "three": 3, "Twelve apples": 12, "2 + 3 = 5": 5, "3 and 3": 3,
    "The answer is 7": 7, "there are 12.": 12, "<think>9</think><answer>4</answer>": 4, "7 cm": 7,
    "abc": None, "": None, "3 dogs and 2 cats": None, "3 or 4": None, "1,0": None, "x2": None, "1e999": None, "1/0": None,
    "B": None,
    "1.5 million": 1.5e6, "The answer is 2 \u00d7 10^5.": 2e5, "$2 \\times 10^{5}$": 2e5,
    "2\u00b710\u2075": 2e5, "10^3": 1000, "10^{-3}": 1e-3, "2^5": 32,
    "The answer is 3 1/2 feet.": 3.5, "3\\frac{1}{2}": 3.5, "1 000 000": 1e6, "twenty-one": 21, "one hundred and five": 105,
    "two thousand three hundred": 2300, "two dozen": 24, "a hundred": 100, "m+n = 256+37 = 293": 293, "Final Answer: **73**": 73,
    "The answer is 7 (4 + 3)": 7, "The answer is 5. 3 of them are red": 5, "It is 300 cm": 300, "7 cm, so 7": 7,
}  # fmt: skip
UNCLEAR = [
    "4 10/3", "3,5", "The answer is 3,5", "The answer is 3 or 4", "The answer is 3, 4 or 5", "The answer is 5 apples and 3 pears",
    "The answer is 3-4", "The answer is 3 to 4", "two and a half", "two thirds", "one half", "12:30", "The answer is 12:30",
    "1.000.000", "1,2345", "300K", "2\\pi", "The answer is 2\u03c0", "The answer is \\sqrt{2}", "\u221a2",
    "2/3/2024", "9^9^9", "10^999", "3x4", "a 3x4 grid", "0x10", "1_000", "3\u00bd cups",
    "It is 3 m, that is 300 cm",
]  # fmt: skip
"""What is a part of something else, or one of several guesses."""


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_numbers(text, value):
    number = parse_number(text)
    assert (number and number.value) == value


@for_each("text", UNCLEAR)
def test_a_piece_of_a_number_and_one_of_several_guesses_are_none(text):
    assert parse_number(text) is None


@for_each(
    "text, truth, right",
    [
        ("5 m", "5 cm", False), ("5 kg", "5 cm", False), ("5 cm^2", "5 cm", False), ("50 mm", "5 cm", True),
        ("5 meters", "5 m", True),
        ("5", "5 cm", True), ("5 cm", "5", True), ("2 h", "120 minutes", True), ("1 m^2", "10000 cm\u00b2", True),
        ("5 in all", "5 ft", True),
        ("5 m/s", "5 cm", True),
    ],
)  # fmt: skip
def test_a_unit_that_contradicts_does_not_pay(text, truth, right):
    number, true = parse_number(text), parse_number(truth)
    assert number is not None and true is not None and is_close(number, true) is right
    assert (regression_score(number, true) == 1) is right and (relative_accuracy(number, true) == 1) is right


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


HOSTILE = [
    "1 " * 50_000,
    "1 000 " * 20_000,
    "two hundred and " * 20_000,
    "3^" * 50_000,
    "answer is 3 a b " * 10_000,
    "A, " * 50_000 + "x",
    "answer is " * 50_000,
    "(" * 100_000,
    "A\n" * 50_000,
    "1," * 50_000,
    "1/" * 50_000,
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_texts_end(hostile):
    parse_number(hostile)
