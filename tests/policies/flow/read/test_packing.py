"""Batches of transitions are cut by actions or by rows; every action that trains is in exactly one part."""

import pytest
import torch
from torch import Tensor

from mmrl.core.types import Batch, Rollouts, Scope
from mmrl.policies.flow.read.packing import cut_actions, cut_rows
from tests.support.fakes import Steps
from tests.support.rows import make_batch

MASK = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0]])
IDS = [4, 9, 4, 9, 7]


def batch() -> Batch:
    """Every action carries its own number, from 0 to 19, in trace and advantages."""
    numbers = torch.arange(20.0).view(5, 4)
    made = make_batch(MASK, numbers, {}, IDS)
    rollouts = Rollouts(
        made.rollouts.groups, made.rollouts.group_ids, made.rollouts.sample_ids, made.rollouts.action_mask, Steps({"x": numbers})
    )
    return Batch(rollouts, numbers, torch.ones(5, 4), torch.ones(5, 4))


def trained(part: Batch) -> list[float]:
    """The numbers of the actions that train, the same in advantages and trace."""
    trace = part.rollouts.trace
    assert isinstance(trace, Steps)
    mask: Tensor = part.rollouts.action_mask
    assert torch.equal(trace.tensors["x"], part.advantages)
    return part.advantages[mask].tolist()


ALL = [0.0, 1.0, 3.0, 5.0, 6.0, 12.0, 13.0, 14.0, 15.0, 18.0]


@pytest.mark.parametrize(("most", "sizes"), [(4, [4, 4, 2]), (9, [9, 1]), (10, [10]), (1, [1] * 10)])
def test_actions_are_cut_row_after_row(most: int, sizes: list[int]):
    parts = list(cut_actions(batch(), most))
    assert [len(trained(part)) for part in parts] == sizes
    assert sorted(number for part in parts for number in trained(part)) == ALL
    assert [float(part.share[part.rollouts.action_mask].sum()) for part in parts] == sizes
    if len(parts) > 1:
        assert all(not part.share[~part.rollouts.action_mask].any() for part in parts), "what trains elsewhere has no share"


def test_a_part_holds_no_steps_before_and_after_its_own():
    first, *_ = cut_actions(batch(), 2)
    assert trained(first) == [0.0, 1.0] and first.advantages.shape == (1, 2)


@pytest.mark.parametrize(
    ("scope", "budget", "expected"),
    [
        # rows of 3, 2, 0, 4 and 1 actions
        ("action", 5, [[0, 1, 2], [3, 4]]),
        ("action", 3, [[0], [1, 2], [3], [4]]),
        ("rollout", 10, [[0, 1, 2, 3, 4]]),
        ("rollout", 9, [[0, 1, 2, 3], [4]]),
        # groups 4, 7 and 9 of 3, 1 and 6 actions
        ("group", 4, [[0, 2, 4], [1, 3]]),
        ("batch", 1, [[0, 1, 2, 3, 4]]),
    ],
)
def test_rows_and_groups_stay_whole(scope: Scope, budget: int, expected: list[list[int]]):
    parts = list(cut_rows(batch(), budget, scope))
    assert [[int(first) // 4 for first in part.advantages[:, 0]] for part in parts] == expected


@pytest.mark.parametrize("scope", ["action", "group"])
def test_no_rows_make_one_part(scope: Scope):
    (part,) = cut_rows(batch().take(torch.arange(0)), 4, scope)
    assert len(part) == 0
