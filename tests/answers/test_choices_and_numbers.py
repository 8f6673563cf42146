import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.answers.choices import LETTERS, choice_score, parse_choices
from mmrl.answers.numbers import Number, is_close, parse_number, regression_score, relative_accuracy
from mmrl.answers.words import error_rate, rouge

CHOICES = {
    "A": "A", "(A)": "A", "A.": "A", "**A**": "A", "[A, C]": "AC", "A, C": "AC", "C,A": "AC", "A and C": "AC", "A; C.": "AC",
    "ACD": "ACD", "B. a dog": "B", "(B) a dog": "B", "A. cat\nC. dog": "AC", "The answer is B.": "B", "answer: (C)": "C",
    "The correct options are A and C.": "AC", "Option D": "D", "the answer is **B**": "B", "<answer>A,B</answer>": "AB",
    "<answer>A</answer><answer>B</answer>": "B", "<think>A</think> B": "B", "I": "I",
    "": "", "a": "", "none": "", "I think so": "", "A dog": "", "CAB": "", "AND": "", "I do not know": "",
    "<answer></answer>": "", "I know: it was Ann": "", "The answer is a dog": "", "see option two": "", "<think>B</think>": "",
}  # fmt: skip


@pytest.mark.parametrize(("text", "letters"), CHOICES.items())
def test_letters(text, letters):
    assert parse_choices(text) == frozenset(letters)


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


def test_rouge_by_hand():
    # "cat" alone is shared by four and three words: P 1/4, R 1/3; no pair of words; the same as subsequence
    scores = rouge("a cat was sitting", "the cat sat")
    assert scores == pytest.approx({"rouge1": 2 / 7, "rouge2": 0, "rougeL": 2 / 7})
    assert rouge("the dogs ran", "the dog ran")["rouge2"] == 1 and rouge("the dogs ran", "the dog ran", stem=False)["rouge2"] == 0
    # of four characters three, and in order; of three pairs two
    assert rouge("\u732b\u5750\u7740", "\u732b\u5750\u7740\u4e86") == pytest.approx(
        {"rouge1": 6 / 7, "rouge2": 0.8, "rougeL": 6 / 7}
    )
    assert rouge("\u043a\u043e\u0442", "\u043a\u043e\u0442", ["rouge1"])["rouge1"] == 1
    with pytest.raises(ValueError, match="rougeX"):
        rouge("a", "a", ["rougeX"])


def slow_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        row, above = [i], row
        for j, y in enumerate(b, start=1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y)))
    return row[-1]


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), min_size=1, max_size=8))
def test_error_rate_is_the_slow_one(text, truth):
    assert error_rate(text, truth) == pytest.approx(slow_distance(text, truth) / len(truth))
    assert error_rate([], []) == 0 and error_rate(["a"], []) == 1


@pytest.mark.parametrize(
    "hostile", ["A, " * 50_000 + "x", "answer is " * 50_000, "(" * 100_000, "A\n" * 50_000, "1," * 50_000, "1/" * 50_000]
)
def test_hostile_texts_end(hostile):
    parse_choices(hostile)
    parse_number(hostile)
