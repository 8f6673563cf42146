"""Numbers at the ends of what floats hold: they train as they should, or are refused by name."""

import math

import pytest
import torch
from torch import nn

from mmrl.algorithms.advantages.group import GroupNorm, LeaveOneOut
from mmrl.core.types import Group, Prompt, Sample, Scores, Status
from mmrl.training.rewards.runner import NamedReward, RewardError, RewardRunner, Transform, refuse_overflow
from mmrl.training.stopping import TrainingStoppedError, refuse_broken_weights
from tests.support.rows import rollouts


def scores(values: list[list[float]], weights: list[float]) -> Scores:
    table = torch.tensor(values)
    return Scores(("small", "large")[: len(weights)], table, torch.full_like(table, int(Status.OK)).long(), torch.tensor(weights))


@pytest.mark.parametrize("size", [1.0, 1e25, 1e30, 1e38])
def test_a_spread_beyond_float32_gives_the_advantages_of_a_small_one(size: float):
    rows = rollouts(torch.ones(4, 1), [0, 0, 0, 0])
    credit = GroupNorm(ddof=0, eps=0.0)(scores([[0.0], [0.0], [0.0], [size]], [1.0]), rows)
    # mean 1/4, deviation sqrt(3)/4, in units of size
    expected = torch.tensor([-1.0, -1.0, -1.0, 3.0]) / math.sqrt(3)
    torch.testing.assert_close(credit.values[:, 0], expected)
    assert credit.values.dtype == torch.float32
    assert float(LeaveOneOut()(scores([[0.0], [0.0], [0.0], [size]], [1.0]), rows).values[3, 0]) == pytest.approx(size)


def test_a_total_beyond_float32_is_refused_with_the_name_of_its_reward():
    refuse_overflow(scores([[1.0, 1e30]], [1.0, 1e3]))
    with pytest.raises(RewardError, match=r"reward 'large': 1e\+30 times its weight 1e\+10; lower the weight"):
        refuse_overflow(scores([[1.0, 1e30]], [1.0, 1e10]))


def test_a_reward_that_its_transform_makes_infinite_is_refused():
    runner = RewardRunner([NamedReward("steep", lambda group: [1e30], transform=Transform(scale=1e-30))])
    with pytest.raises(RewardError, match=r"reward 'steep' is 1e\+60 after its transform of 1e\+30: widen transform\.scale"):
        runner.score([Group(0, Prompt("p", "?"), (Sample(text="x"),))])


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_weights_that_an_update_broke_stop_the_run(broken: float):
    weights = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(0))]
    refuse_broken_weights(weights, 5, 1e-3)
    with torch.no_grad():
        weights[1][1, 0] = broken
    with pytest.raises(TrainingStoppedError, match=r"step 5: the update made weights infinite or NaN at a learning rate of 0\.5"):
        refuse_broken_weights(weights, 5, 0.5)
