"""Rewards per step: their advantages by hand, what they reduce to, and what is refused."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.advantages.flow import StepRewards
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.core.protocols import Advantage
from mmrl.core.types import Rollouts, Scores
from tests.support.rows import make_batch

PROCESS = StepRewards(gamma=0.0, anchor=0.0, weigh=False)
REWARDS = torch.tensor([[1.0, 0.0, 3.0], [0.0, 2.0, 3.0], [2.0, 4.0, 3.0], [1.0, 2.0, 3.0], [5.0, 1.0, 0.0], [7.0, 1.0, 4.0]])
IDS = [0, 0, 0, 0, 1, 1]


def rows(rewards: Tensor) -> tuple[Scores, Rollouts]:
    """One row per line of rewards; the total is that of the last step."""
    rollouts = make_batch(torch.ones_like(rewards), torch.zeros(len(rewards)), {}, IDS[: len(rewards)]).rollouts
    lines = iter(rewards.tolist())
    groups = [
        replace(group, samples=tuple(replace(one, values=tuple(enumerate(next(lines)))) for one in group.samples))
        for group in rollouts.groups
    ]
    status = torch.where(rewards[:, -1:].isnan(), 2, 0)
    return Scores(("r",), rewards[:, -1:], status, torch.ones(1)), replace(rollouts, groups=tuple(groups))


def credit(advantage: Advantage, rewards: Tensor) -> Tensor:
    return advantage(*rows(rewards)).values


def test_each_step_is_compared_with_the_same_step_of_its_group():
    found = credit(PROCESS, REWARDS)
    # step 1 of group 0: 1 0 2 1 have mean 1 and deviation sqrt(1/2); step 3 has no spread; group 1: +-1
    first = torch.tensor([0.0, -1.0, 1.0, 0.0]) / (0.5**0.5 + 1e-4)
    torch.testing.assert_close(found[:4, 0], first)
    assert not found[:4, 2].any()
    torch.testing.assert_close(found[4:], torch.tensor([[-1.0, 0.0, -1.0], [1.0, 0.0, 1.0]]), atol=1e-3, rtol=0)


def test_without_gamma_and_anchor_equal_rewards_are_grpo():
    """With weights of steps, too: all are 1."""
    same = REWARDS[:, :1].expand(-1, 3)
    wanted = credit(GroupNorm(ddof=0, eps=1e-4), same)
    for one in (PROCESS, replace(PROCESS, weigh=True)):
        torch.testing.assert_close(credit(one, same), wanted)


def test_an_anchor_leaves_a_signal_where_rewards_are_equal():
    same = torch.full((4, 3), 2.0)
    assert not credit(StepRewards(gamma=0.0, anchor=0.0), same).any()
    found = credit(StepRewards(gamma=0.0, anchor=0.5, anchor_share=0.6), same)
    assert found.tolist() == [[1.0, 1.0, 0.0]] * 4


def test_later_rewards_count_for_earlier_steps():
    values = StepRewards(gamma=0.5).values_of(torch.tensor([[0.0, 0.0, 8.0]]))
    assert values.tolist() == [[2.0, 4.0, 8.0]]


def test_a_row_that_failed_leaves_its_group():
    broken = REWARDS.clone()
    broken[0, 1] = torch.nan
    found = PROCESS(*rows(broken))
    assert found.keep.tolist() == [False, True, True, True, True, True] and not found.values[0].any()
    without = credit(PROCESS, REWARDS[1:4])
    torch.testing.assert_close(found.values[1:4], without)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"reach -1, below 0: set algorithm\.advantage\.weigh = false"):
        credit(StepRewards(gamma=0.0), REWARDS - 1)
    scores, rollouts = rows(REWARDS)
    bare = replace(
        rollouts, groups=tuple(replace(g, samples=tuple(replace(s, values=()) for s in g.samples)) for g in rollouts.groups)
    )
    with pytest.raises(ValueError, match=r"rewards of 0 of 3 steps, .*: set algorithm\.schedule\.previews = true"):
        PROCESS(scores, bare)
