"""ROUGE and error rates: by hand, and against a slow loop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.answers.words import error_rate, rouge


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
    with pytest.raises(ValueError, match=message):
        rouge("a", "a", kinds)
