"""The vocabulary: totals of rewards, rows that are taken."""

import pytest
import torch

from mmrl.core.types import ClipRange, Scores, Status
from mmrl.runtime.tensors import masked_mean, pad_actions, stack_ragged, within

OK, NA, FAILED = int(Status.OK), int(Status.NA), int(Status.FAILED)


def scores(values: list[list[float]], status: list[list[int]], weights: list[float]) -> Scores:
    names = tuple("abc"[: len(weights)])
    return Scores(names, torch.tensor(values), torch.tensor(status), torch.tensor(weights))


def test_a_reward_of_negative_weight_is_subtracted():
    # 1 * 2 - 0.5 * 4 = 0; -0.5 * 3 = -1.5 where the first does not apply
    total = scores([[2.0, 4.0], [torch.nan, 3.0]], [[OK, OK], [NA, OK]], [1.0, -0.5]).total()
    assert total.tolist() == [0.0, -1.5]


def test_a_weighted_failure_takes_the_row_out_and_a_logged_one_does_not():
    values, status = [[1.0, torch.nan, 1.0], [1.0, 1.0, torch.nan]], [[OK, FAILED, OK], [OK, OK, FAILED]]
    total = scores(values, status, [1.0, 2.0, 0.0]).total()
    assert total[0].isnan() and total[1] == 3.0


def test_a_row_for_which_nothing_weighted_applies_has_no_total():
    assert scores([[torch.nan, 1.0]], [[NA, OK]], [1.0, 0.0]).total().isnan().all()


def test_rows_are_taken_in_the_order_given():
    taken = scores([[1.0], [2.0], [3.0]], [[OK], [NA], [FAILED]], [1.0]).take(torch.tensor([2, 0]))
    assert taken.values[:, 0].tolist() == [3.0, 1.0] and taken.status[:, 0].tolist() == [FAILED, OK]


def test_groups_are_found_by_id():
    ids, x = torch.tensor([7, 3, 7, 0]), torch.tensor([[1.0], [5.0], [3.0], [8.0]])
    assert within(ids, x, lambda rows: rows - rows.mean())[:, 0].tolist() == [-1.0, 0.0, 1.0, 0.0]


def test_masked_means_and_padding():
    x, mask = torch.tensor([[1.0, torch.nan], [3.0, 5.0]]), torch.tensor([[True, False], [True, True]])
    assert masked_mean(x, mask) == 3.0 and masked_mean(x, mask, dim=1).tolist() == [1.0, 4.0]
    assert masked_mean(x, torch.zeros_like(mask)) == 0.0
    assert pad_actions(torch.ones(1, 2), 3, -1.0).tolist() == [[1.0, 1.0, -1.0]]
    assert stack_ragged([torch.ones(1), torch.ones(2)]).tolist() == [[1.0, 0.0], [1.0, 1.0]]


@pytest.mark.parametrize(("given", "narrowest"), [(ClipRange(0.2, 0.28), 0.2), (ClipRange(4e-4, 3e-4, "rollout"), 3e-4)])
def test_the_narrow_side_of_a_clip_range(given: ClipRange, narrowest: float):
    assert given.narrowest == narrowest
