from dataclasses import replace

import pytest
import torch

from mmrl.algorithms.masks.truncated import DropTruncated
from mmrl.algorithms.shaping.thinking import OverlongPenalty
from mmrl.algorithms.weights.prompts import Difficulty
from mmrl.core.types import Prompt, Status
from tests.support.rows import counts_of, make_batch, rollouts, scores


def test_overlong_penalty_is_a_reward_of_its_own():
    mask = torch.arange(12) < torch.tensor([4, 6, 8, 10, 12])[:, None]
    failed = torch.tensor([[False], [True], [False], [False], [False]])
    table = scores(torch.ones(5, 1), failed=failed)
    shaped = OverlongPenalty(length=10, buffer=4)(table, rollouts(mask), {})
    assert shaped.names == ("reward_0", "overlong")
    assert shaped.values[:, 1].tolist() == [0, 0, -0.5, -1, -1]
    assert shaped.status[:, 1].tolist() == [Status.OK] * 5
    assert shaped.total()[[0, 2, 3, 4]].tolist() == [1, 0.5, 0, 0]
    assert shaped.total()[1].isnan(), "a failed reward is not repaired by a penalty"
    # a fifth of the length unless told otherwise
    assert OverlongPenalty(length=10)(table, rollouts(mask), {}).values[:, 1].tolist() == [0, 0, 0, -1, -1]


def test_overlong_penalty_wants_a_length_and_its_name():
    with pytest.raises(ValueError, match=r"OverlongPenalty.length is not set.*max_new_tokens"):
        OverlongPenalty()(scores(torch.ones(1, 1)), rollouts(torch.ones(1, 1)), {})
    taken = replace(scores(torch.ones(1, 1)), names=("overlong",))
    with pytest.raises(ValueError, match="rename the reward"):
        OverlongPenalty(10)(taken, rollouts(torch.ones(1, 1)), {})


def test_truncated_rows_do_not_train():
    rows = rollouts(torch.tensor([[1, 1], [1, 0], [1, 1]]), [4, 2, 4], truncated=[False, False, True])
    assert DropTruncated()(rows).tolist() == [[True, True], [True, False], [False, False]]


def test_difficulty_is_a_column_of_the_prompt():
    batch = make_batch(torch.ones(3, 2), torch.zeros(3), {}, [1, 0, 1])
    groups = tuple(
        replace(group, prompt=Prompt(f"p{group.id}", columns={"difficulty": 1 + group.id})) for group in batch.rollouts.groups
    )
    batch = replace(batch, rollouts=replace(batch.rollouts, groups=groups))
    assert Difficulty()(batch, counts_of(batch)).tolist() == [[2, 2], [1, 1], [2, 2]]
    with pytest.raises(ValueError, match=r"prompt 'p1' has None in column 'size'.*name another column"):
        Difficulty("size")(batch, counts_of(batch))
