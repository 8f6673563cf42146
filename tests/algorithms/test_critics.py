"""Advantages over a value head and the term that trains it, against loops, and what is refused."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.advantages.segments import ValueGae
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.regression import ValueFit
from mmrl.algorithms.samplers.tracked import NearestValue, nearest
from mmrl.algorithms.weights.aggregate import TokenMean
from mmrl.app.config import run as configs
from mmrl.app.run.beforehand import check_axes
from mmrl.app.run.build import build
from mmrl.core.readings import OLD_VALUE, REWARD, VALUE
from mmrl.core.types import Batch, Prompt, Rollouts
from mmrl.training.trainer import Trainer
from tests.support.rows import loss_and_gradient, rollouts, scores, weighed

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
    batch = weighed(algorithm, Batch(rows, ones, ones, ones, {REWARD: TOTALS[:, None].expand(MASK.shape)}))
    values = torch.rand(MASK.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss, gradient = loss_and_gradient(algorithm, batch, {VALUE: values}, VALUE)
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
