"""Rows from scored samples: which prompts are kept, and which samples become pairs."""

import math

import pytest

from mmrl.algorithms.miners import BestAndWorst, Difficulty
from mmrl.core.samples import Sample


def samples(*texts: str, cut: str = "") -> list[Sample]:
    return [Sample(text, token_ids=tuple(range(len(text))), truncated=text == cut) for text in texts]


def test_a_pair_is_the_best_and_the_worst_that_are_whole_and_scored():
    made = samples("worse", "cut", "best", "failed", "good", "worst", cut="cut")
    totals = [0.2, 9.0, 1.0, math.nan, 0.8, 0.1]
    pair = {"chosen": "best", "rejected": "worst", "margin": 0.9}
    assert BestAndWorst()(made, totals).rows == [pair]
    assert BestAndWorst(most=5)(made, totals).rows == [
        pair,
        {"chosen": "good", "rejected": "worse", "margin": pytest.approx(0.6)},
    ]
    assert BestAndWorst(most=5, gap=0.7)(made, totals).rows == [pair]
    assert BestAndWorst(success_at=2.0)(made, totals).rows == []
    assert BestAndWorst(most=2, success_at=0.15)(made, totals).rows == [pair]


@pytest.mark.parametrize("totals", [[0.5, 0.5], [1.0, math.nan], [math.nan, math.nan]])
def test_no_pair_without_a_difference(totals: list[float]):
    assert BestAndWorst()(samples("a", "b"), totals).rows == []


def test_equal_texts_are_no_pair_though_their_scores_differ():
    assert BestAndWorst()(samples("a", "a"), [1.0, 0.0]).rows == []


def test_the_longest_of_the_right_against_the_shortest_of_the_wrong():
    made, totals = samples("ok", "right", "no", "wrong"), [1.0, 1.0, 0.0, 0.0]
    assert BestAndWorst()(made, totals).rows == [{"chosen": "ok", "rejected": "wrong", "margin": 1.0}]
    assert BestAndWorst(prefer_long=True)(made, totals).rows == [{"chosen": "right", "rejected": "no", "margin": 1.0}]


def test_prompts_that_are_sometimes_right_are_kept_with_their_best_sample():
    made, totals = samples("bad", "right", "better", "cut", cut="cut"), [0.0, 0.6, 0.9, 1.0]
    assert Difficulty(high=0.8)(made, totals) == ([{}], 3, 4)
    assert Difficulty(high=0.8, column="completion")(made, totals).rows == [{"completion": "better"}]
    assert Difficulty(high=0.7)(made, totals).rows == [] and Difficulty(low=0.8, high=1.0)(made, totals).rows == []
    assert Difficulty(low=0.0, column="x")(made, [0.0] * 4).rows == [] and Difficulty(low=0.0)(made, [0.0] * 4).rows == [{}]
    assert Difficulty(low=0.0)(made, [math.nan] * 4) == ([], 0, 0)


def test_an_empty_interval_is_refused():
    with pytest.raises(ValueError, match=r"low is 0\.6 and high is 0\.4: no share of right samples lies between"):
        Difficulty(low=0.6, high=0.4)
