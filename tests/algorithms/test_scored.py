"""Losses of scores and of a value head, against loops and formulas written out, and what is refused."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from mmrl.algorithms.advantages.segments import ValueGae
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.objectives.given import PairScores, Ratings
from mmrl.algorithms.objectives.regression import ValueFit
from mmrl.algorithms.planners.taught import PicturePairs
from mmrl.algorithms.samplers.learned import NearestValue, nearest
from mmrl.algorithms.weights.aggregate import TokenMean
from mmrl.app.config import run as configs
from mmrl.app.run.beforehand import check_axes
from mmrl.app.run.build import build
from mmrl.core.readings import OLD_VALUE, REWARD, VALUE
from mmrl.core.types import Batch, Prompt, Reading, Rollouts
from mmrl.training.trainer import Trainer
from tests.support.rows import make_batch, rollouts, scores, weighed_loss

LOOKS, TEXT = Reading("score/looks"), Reading("score/text")
AXES = ("looks", "text")
LIVE = {
    LOOKS: torch.tensor([[0.5, 0.5], [-0.25, 0.0], [1.0, 1.0], [2.0, 2.0]]),
    TEXT: torch.tensor([[3.0, 3.0], [1.0, 0.0], [0.5, 0.5], [0.2, 0.2]]),
}


def pairs(*columns: dict[str, object]) -> Batch:
    """Two pairs, of which the second speaks of another axis and has a margin, unless `columns` say otherwise."""
    rows = rollouts(torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]]), [4, 4, 7, 7])
    said = columns or ({}, {"axis": "text", "margin": 0.4})
    groups = [replace(group, prompt=Prompt("p", columns=own)) for group, own in zip(rows.groups, said, strict=True)]
    return make_batch(replace(rows, groups=tuple(groups)), torch.tensor([1.0, -1.0, 1.0, -1.0]), {})


def loss_of(term: PairScores | Ratings, batch: Batch, of: Reading = LOOKS) -> tuple[float, torch.Tensor]:
    algorithm = Algorithm(((1.0, term),), aggregation=KINDS["scores"].aggregation)
    loss, gradient = weighed_loss(algorithm, batch, LIVE, of)
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


MASK = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
TOTALS = torch.tensor([1.0, 0.25, 0.5, float("nan")], dtype=torch.float64)
CUT = [False, True, False, True]


def rows_of(values: Tensor) -> Rollouts:
    """Rows with holes, some of them cut, one without a reward."""
    return replace(rollouts(MASK, truncated=CUT), recorded={OLD_VALUE: values})


def by_hand(part: ValueGae, reward: float, values: list[float], is_cut: bool) -> list[float]:
    """Every action's sum, written out."""
    ends = values[-1] if is_cut else 0.0
    ahead = [*values[1:], ends]
    gains = [part.gamma * later - here for here, later in zip(values, ahead, strict=True)]
    gains[-1] += 0.0 if is_cut else reward
    falls = part.gamma * part.decay
    return [sum(falls**k * gain for k, gain in enumerate(gains[t:])) for t in range(len(gains))]


@pytest.mark.parametrize("part", [ValueGae(), ValueGae(0.9, 0.5), ValueGae(decay=1.0), ValueGae(extends=False)])
def test_every_action_is_compared_with_what_the_head_expected(part: ValueGae):
    values = torch.rand(MASK.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    credit = part(scores(TOTALS[:, None]), rows_of(values))
    assert credit.keep.tolist() == [True, True, True, False] and not credit.values[3].any()
    assert not credit.values[~MASK.bool()].any()
    for i in range(3):
        own = MASK[i].bool()
        expected = by_hand(part, float(TOTALS[i]), values[i, own].tolist(), CUT[i] and part.extends)
        torch.testing.assert_close(credit.values[i, own], torch.tensor(expected, dtype=torch.float64))


def test_the_head_learns_from_rows_that_ended():
    algorithm = Algorithm(((0.5, ValueFit(gamma=0.9)),), aggregation=TokenMean())
    mask, ones = MASK.bool(), torch.ones(MASK.shape, dtype=torch.float64)
    rows = rollouts(mask, truncated=CUT)
    batch = make_batch(rows, ones, {REWARD: TOTALS[:, None].expand(MASK.shape)})
    values = torch.rand(MASK.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss, gradient = weighed_loss(algorithm, batch, {VALUE: values}, VALUE)
    expected, count = 0.0, int(mask.sum())
    for i in (0, 2):
        places = mask[i].nonzero()[:, 0].tolist()
        for k, t in enumerate(reversed(places)):
            off = float(values[i, t]) - 0.9**k * float(TOTALS[i])
            expected += 0.5 * off**2 / count
            assert float(gradient[i, t]) == pytest.approx(off / count, rel=1e-5)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert not gradient[[1, 3]].any()


WORDS = [
    'algorithm.advantage={kind="ValueGae"}',
    'algorithm.objective=[{kind="Clip"}, {kind="ValueFit", coef=0.5}]',
    'policy.scores=["value"]',
    'algorithm.planner={kind="Taught"}',
    "algorithm.group_size=1",
    "algorithm.minibatches=2",
    "data.written=right",
]
"""Completions of the data, which end whatever the weights are."""


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in trainer.policy.net.model.named_parameters()}  # type: ignore[attr-defined]


def test_the_head_trains_with_the_policy_and_goes_on_exactly():
    resolved = configs.load("tiny/image", WORDS)
    check_axes(resolved.config)
    whole = build(resolved).trainer
    metrics = whole.step()
    assert metrics["policy/value_error"] > 0
    state, at_once = copy.deepcopy(whole.state_dict()), weights_of(whole)
    assert at_once["score_head.weight"].abs().max() > 0, "it begins at 0"
    whole.step()
    resumed = build(resolved).trainer
    resumed.load_state_dict(state)
    assert all(torch.equal(weight, at_once[name]) for name, weight in weights_of(resumed).items())
    resumed.step()
    wanted = weights_of(whole)
    assert not torch.equal(wanted["score_head.weight"], at_once["score_head.weight"])
    assert all(torch.equal(weight, wanted[name]) for name, weight in weights_of(resumed).items())


JUDGED = [
    'algorithm.objective=[{kind="Clip"}, {kind="ValueFit", coef=0.5, group=true}]',
    'policy.scores=["value"]',
    "algorithm.group_size=2",
    "algorithm.minibatches=2",
    "prompts_per_step=2",
    'sampler.kind="NearestValue"',
    "sampler.pool=3",
]


def test_prompts_are_drawn_by_what_the_head_expects_and_again_after_a_pause():
    resolved = configs.load("tiny/image", JUDGED)
    whole = build(resolved).trainer
    assert whole.step()["policy/value_error"] > 0
    asked = list[tuple[list[str], list[float]]]()
    sampler: Any = whole.sampler
    judge = sampler.judge

    def noted(prompts):
        values = judge(prompts)
        asked.append(([prompt.id for prompt in prompts], values))
        return values

    sampler.ask(noted)
    state = copy.deepcopy(whole.state_dict())
    drawn = [prompt.id for prompt in whole.sampler.draw(2)]
    ((ids, values),) = asked
    assert len(ids) == 6 and len(set(values)) > 1 and drawn == [ids[i] for i in nearest(values, 0.5, 2)]
    resumed = build(resolved).trainer
    resumed.load_state_dict(state)
    assert [prompt.id for prompt in resumed.sampler.draw(2)] == drawn
    known = [*sampler.prompts[:3]]
    gone = judge([replace(known[0], media=("gone.png",)), *known[1:]])
    assert math.isnan(gone[0]) and gone[1:] == pytest.approx(judge(known)[1:], abs=1e-5)
    assert nearest([0.4, math.nan, 0.5], 0.5, 2) == [1, 2]
    assert nearest([0.5, math.nan, 0.4], 0.5, 2) == [0, 1], "what cannot be shown is drawn, and refused or skipped as ever"


def test_nobody_expects_anything_without_a_head():
    with pytest.raises(ValueError, match=r"asks a value head: set policy.scores"):
        NearestValue([Prompt("a")]).draw(1)
