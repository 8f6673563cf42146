"""Blocks, letters, numbers and words of answers: readable ones, unreadable ones, round trips, and texts made to be slow."""

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.answers.block import InTemplate, answer_block, keeps_format, opened_text
from mmrl.answers.choices import LETTERS, choice_score, parse_choices
from mmrl.answers.numbers import Number, is_close, parse_number, regression_score, relative_accuracy
from mmrl.answers.words import error_rate, rouge
from mmrl.core.samples import Group, Prompt, Sample, Scored
from tests.support.each import for_each
from tests.support.refused import refused


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> B </answer>", "B"), ("<answer>A</answer> no, <answer>B</answer>", "B"),
        ("<answer>A</answer> no, <answer>B", "A"), ("<answer>A <answer>B</answer>", "B"), ("plain", "plain"),
        ("<think>A</think> B", "B"), ("A</think> B", "B"), ("<think>A, cut", ""), ("<think>A? <answer>A</answer>, but", ""),
        ("<think>So <answer>A</answer>\n", "A"), ("</answer><answer>", "</answer><answer>"), ("", ""), ("<think>", ""),
    ],
)  # fmt: skip
def test_answer_block(text, answer):
    assert answer_block(text) == answer


def test_a_text_stands_behind_the_tag_that_its_template_opened():
    texts = {("B", ""): "B", ("B", "<think>"): "<think>B", ("\n<think>x</think>B", "<think>"): "\n<think>x</think>B"}
    assert {key: opened_text(Sample(key[0], opened=key[1])) for key in texts} == texts


def test_a_text_off_its_template_scores_0_even_where_no_text_would_score_more():
    group = Group(0, Prompt("p"), (Sample("x"), Sample("<answer>x</answer>"), Sample("<answer></answer>")))
    found = InTemplate(template="direct").score_each(group, lambda x: Scored(3.0 - len(answer_block(x.text or "")), {"a": 1.0}))
    assert found == [Scored(value, {"a": 1.0, "format": kept}) for value, kept in ((0.0, 0.0), (2.0, 1.0), (3.0, 1.0))]


FORMATS = {
    "think": [
        ("<think>a</think><answer>b</answer>", True),
        ("<think>a</think>\n\n<answer>b</answer>", True),
        ("<think>a\nb</think><answer>b\nc</answer>", True),
        ("<think></think><answer></answer>", True),
        # Video-R1's and VLM-R1's expression refuses blanks at the ends
        ("<think>a</think><answer>b</answer>\n", True),
        (" <think>a</think><answer>b</answer> ", True),
        # the chat template has opened the thought
        ("a</think><answer>b</answer>", True),
        # and accepts a second answer, because its `.*?` stretches
        ("<think>a</think><answer>b</answer><answer>c</answer>", False),
        ("<think>a</think><answer>b</answer> c", False),
        ("x <think>a</think><answer>b</answer>", False),
        ("<think>a<answer>b</answer>", False),
        ("<think>a</think>x<answer>b</answer>", False),
        ("<think>a</think></think><answer>b</answer>", False),
        ("<think><think>a</think><answer>b</answer>", False),
        ("<think>a <answer>c</answer></think><answer>b</answer>", False),
        ("<answer>b</answer>", False),
        ("", False),
    ],
    "direct": [
        ("<answer>[1, 2, 3, 4]</answer>", True),
        ("\n<answer>b</answer>\n", True),
        ("<answer>b</answer><answer>c</answer>", False),
        ("b", False),
        ("<answer>b", False),
        ("<answer></answer", False),
        ("well: <answer>b</answer>", False),
        ("<think>a</think><answer>b</answer>", False),
    ],
    "json": [
        ('[{"bbox_2d": [1, 2, 3, 4]}]', True),
        ('```json\n{"a": 1}\n```\n', True),
        ("```\n[1]\n```", True),
        ("{'a': 1}", False),
        ("[1, 2", False),
        ("text [1]", False),
        ("[" * 100_000, False),
    ],
}


@pytest.mark.parametrize(
    ("template", "number"), [(template, number) for template, rows in FORMATS.items() for number in range(len(rows))]
)
def test_templates_are_kept_or_not(template, number):
    text, kept = FORMATS[template][number]
    assert keeps_format(text, template) is kept


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


HOSTILE = {
    parse_choices: ("A and ", "the correct answer to ", "A\n\n"),
    parse_number: ("1 ", "1 000 ", "two hundred and ", "3^", "answer is 3 a b "),
}
BOTH = ("A, ", "answer is ", "(", "A\n", "1,", "1/")


@pytest.mark.parametrize(("read", "piece"), [(read, piece) for read, own in HOSTILE.items() for piece in (*own, *BOTH)])
def test_hostile_texts_end(read: Callable[[str], object], piece: str):
    for end in ("", "A is"):
        read(piece * (100_000 // len(piece)) + end)


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


@pytest.mark.parametrize(("kinds", "message"), [(("rouge1", "rouge0"), "no kinds rouge0"), ((), r"no kinds \(none given\)")])
def test_unknown_kinds_of_rouge_are_refused(kinds: tuple[str, ...], message: str):
    refused(message, rouge, "a", "a", kinds)
