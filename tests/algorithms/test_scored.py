"""Losses of scores: pairs, margins, axes and ratings against the formulas written out, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from PIL import Image

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.objectives.given import PairScores, Ratings
from mmrl.algorithms.planners.taught import PicturePairs
from mmrl.core.types import Batch, Prompt, Reading
from tests.support.rows import loss_and_gradient, make_batch, weighed

LOOKS, TEXT = Reading("score/looks"), Reading("score/text")
AXES = ("looks", "text")
LIVE = {
    LOOKS: torch.tensor([[0.5, 0.5], [-0.25, 0.0], [1.0, 1.0], [2.0, 2.0]]),
    TEXT: torch.tensor([[3.0, 3.0], [1.0, 0.0], [0.5, 0.5], [0.2, 0.2]]),
}


def pairs(*columns: dict[str, object]) -> Batch:
    """Two pairs, of which the second speaks of another axis and has a margin, unless `columns` say otherwise."""
    batch = make_batch(torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]]), torch.tensor([1.0, -1.0, 1.0, -1.0]), {}, [4, 4, 7, 7])
    said = columns or ({}, {"axis": "text", "margin": 0.4})
    groups = tuple(
        replace(group, prompt=Prompt(str(group.id), "", columns=own))
        for group, own in zip(batch.rollouts.groups, said, strict=True)
    )
    return replace(batch, rollouts=replace(batch.rollouts, groups=groups))


def loss_of(term: PairScores | Ratings, batch: Batch, of: Reading = LOOKS) -> tuple[float, torch.Tensor]:
    algorithm = Algorithm(((1.0, term),), aggregation=KINDS["scores"].aggregation)
    loss, gradient = loss_and_gradient(algorithm, weighed(algorithm, batch), LIVE, of)
    return loss.item(), gradient.sum(1)


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def test_pairs_are_bradley_and_terrys_on_the_axis_of_their_prompt():
    first, second = softplus(-0.75), softplus(0.4 - 0.3)
    loss, of_looks = loss_of(PairScores(AXES), pairs())
    assert loss == pytest.approx((first + second) / 2)
    pull = 1 / (1 + math.exp(0.75)) / 2
    assert of_looks.tolist() == pytest.approx([-pull, pull, 0, 0])
    _, of_text = loss_of(PairScores(AXES), pairs(), TEXT)
    pull = 1 / (1 + math.exp(0.3 - 0.4)) / 2
    assert of_text.tolist() == pytest.approx([0, 0, -pull, pull])


def test_scores_are_kept_around_zero_by_the_square_of_a_pairs_sum():
    loss, gradient = loss_of(PairScores(AXES, center=0.1), pairs())
    plain, before = loss_of(PairScores(AXES), pairs())
    assert loss - plain == pytest.approx(0.1 * (0.25**2 + 0.7**2) / 2)
    assert (gradient - before).tolist() == pytest.approx([0.1 * 0.25, 0.1 * 0.25, 0, 0])


def test_ratings_are_squares():
    loss, gradient = loss_of(Ratings(AXES), pairs({"rating": 1}, {"rating": 0.5, "axis": "text"}))
    assert loss == pytest.approx((0.5**2 + 1.25**2 + 0 + 0.3**2) / 4)
    assert gradient.tolist() == pytest.approx([2 * -0.5 / 4, 2 * -1.25 / 4, 0, 0])


@pytest.mark.parametrize(
    ("term", "columns", "message"),
    [
        (PairScores(AXES), {"axis": "sound"}, "prompt 'p' is about the axis 'sound', and trained are looks, text: name it"),
        (PairScores(), {"margin": "much"}, "prompt 'p' has 'much' in the column 'margin', where a finite number is needed"),
        (PairScores(), {"margin": math.inf}, "has inf in the column 'margin'"),
        (Ratings(), {}, "prompt 'p' has nothing in the column 'rating'"),
        (Ratings(), {"rating": True}, "has True in the column 'rating'"),
    ],
)
def test_columns_that_say_nothing_are_refused(term: PairScores | Ratings, columns: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        term.check_prompts([Prompt("p", "", columns=columns)])
    with pytest.raises(ValueError, match="all 2 ratings that were looked at are 3, so"):
        Ratings().check_prompts([Prompt(name, "", columns={"rating": 3}) for name in "pq"])
    PairScores(AXES).check_prompts([Prompt("p", "", columns={"axis": "text", "margin": 2})])


RED, BLUE = (Image.new("RGB", (8, 8), color) for color in ("red", "blue"))


def test_the_preferred_picture_is_shown_first_and_nothing_is_written_of_either():
    prompts = [Prompt("p", "a red square", (BLUE, RED), columns={"preferred": 1}), Prompt("q", "", (BLUE, RED))]
    requests = list(PicturePairs().first(prompts, 8, 3, 0))
    assert [one.shown_prompt.media for one in requests] == [(RED,), (BLUE,), (BLUE,), (RED,)]
    assert [(one.group_id, one.written, one.role) for one in requests] == [(i, "", "injected") for i in (3, 3, 4, 4)]
    assert all(one.shown.trained for one in requests)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (Prompt("p", "", (RED,)), "prompt 'p' shows 1, where two pictures are compared: give two"),
        (
            Prompt("p", "", (RED, BLUE), columns={"preferred": 0.5}),
            "has 0.5 in the column 'preferred', .* leave undecided pairs out",
        ),
    ],
)
def test_pairs_of_pictures_that_decide_nothing_are_refused(prompt: Prompt, message: str):
    with pytest.raises(ValueError, match=message):
        PicturePairs().check_prompts([prompt])
