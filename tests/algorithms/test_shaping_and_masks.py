"""Shapings and masks: bonuses, gates and minima by hand, and what failures and missing answers do."""

from dataclasses import replace

import pytest
import torch

from mmrl.algorithms.advantages.decoupled import Decoupled
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.masks.truncated import DropTruncated
from mmrl.algorithms.shaping.combine import Gate, Minimum, Unlikeliness
from mmrl.algorithms.shaping.thinking import OverlongPenalty
from mmrl.algorithms.weights.importance import Difficulty
from mmrl.core.readings import OLD_LOGPROBS
from mmrl.core.types import Status
from tests.support.rows import counts_of, make_batch, rollouts, scores, with_columns


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
    batch = make_batch(with_columns(rollouts(torch.ones(3, 2), [1, 0, 1]), difficulty=[2, 1]), torch.zeros(3), {})
    assert Difficulty()(batch, counts_of(batch)).tolist() == [[2, 2], [1, 1], [2, 2]]
    with pytest.raises(ValueError, match=r"prompt '1' has None in column 'size'.*name another column"):
        Difficulty("size")(batch, counts_of(batch))


NAN = float("nan")


def table(values, weights=None, failed=None, names=("accuracy", "format")):
    made = scores(torch.tensor(values), weights, None if failed is None else torch.tensor(failed))
    return replace(made, names=tuple(names))


def rows(count):
    return rollouts(torch.ones(count, 1))


def test_a_gate_multiplies_and_keeps_both_columns():
    given = table([[0.8, 1.0], [0.8, 0.0], [0.4, 0.5]], [2.0, 0.0])
    gated = Gate(by="format")(given, rows(3), {})
    assert gated.names == ("accuracy", "format", "accuracy_gated")
    assert gated.weights.tolist() == [0, 0, 2]
    assert gated.values[:, :2].equal(given.values), "what the rewards said stays in the log"
    assert gated.total().tolist() == pytest.approx([1.6, 0, 0.4])
    assert Gate(by="format", at_least=0.5)(given, rows(3), {}).total().tolist() == pytest.approx([1.6, 0, 0.8])


def test_a_gate_with_weight_still_adds_its_own():
    gated = Gate(by="format")(table([[0.5, 1.0], [0.5, 0.0]], [1.0, 0.25]), rows(2), {})
    assert gated.total().tolist() == [0.75, 0]


def test_a_failed_gate_fails_what_it_gates_and_one_that_does_not_apply_gates_nothing():
    given = table([[0.8, NAN], [0.8, 1.0]], [1.0, 0.0], failed=[[False, True], [False, False]])
    assert Gate()(given, rows(2), {}).status[:, 2].tolist() == [Status.FAILED, Status.OK]
    assert Gate()(given, rows(2), {}).total()[0].isnan()
    assert Gate()(table([[0.8, NAN]], [1.0, 0.0]), rows(1), {}).total().tolist() == [pytest.approx(0.8)]
    failed = table([[NAN, 0.0]], [1.0, 0.0], failed=[[True, False]])
    assert Gate()(failed, rows(1), {}).status[0, 2] == Status.FAILED


def test_gates_name_rewards():
    given = table([[0.5, 0.5, 0.0]], [1.0, 1.0, 0.0], names=("iou", "count", "format"))
    assert Gate(rewards=("iou",))(given, rows(1), {}).weights.tolist() == [0, 1, 0, 1]
    assert Gate()(given, rows(1), {}).names[3:] == ("iou_gated", "count_gated")
    with pytest.raises(
        ValueError, match=r"Gate\.by is 'forma'; the run has the rewards \['iou', 'count', 'format'\]: name one of them"
    ):
        Gate(by="forma")(given, rows(1), {})
    with pytest.raises(ValueError, match="'iou_gated' already"):
        Gate()(replace(given, names=("iou", "iou_gated", "format")), rows(1), {})


def test_the_minimum():
    given = table([[0.8, 0.5, 0.0], [0.1, NAN, 0.0], [NAN, NAN, 0.0]], [3.0, 1.0, 0.0], names=("a", "b", "log"))
    least = Minimum(weight=2.0)(given, rows(3), {})
    assert least.names[-1] == "minimum" and least.weights.tolist() == [0, 0, 0, 2]
    assert least.total().tolist()[:2] == pytest.approx([1.0, 0.2])
    assert least.status[:, 3].tolist() == [Status.OK, Status.OK, Status.NA] and least.total()[2].isnan()
    failed = table([[0.8, NAN]], failed=[[False, True]])
    assert Minimum()(failed, rows(1), {}).status[0, 2] == Status.FAILED
    assert Minimum(rewards=("format",))(table([[0.8, 0.3]]), rows(1), {}).total().tolist() == pytest.approx([1.1])


def test_the_unlikely_earns_more():
    logprobs = torch.tensor([[-1.0, -1.0], [-0.1, -9.0], [-0.5, 0.0], [-2.0, 0.0]])
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 0]])
    given = table([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [0.0, 1.0]], [1.0, 0.0])
    shaped = Unlikeliness(0.4)(given, rollouts(mask, [0, 0, 0, 1]), {OLD_LOGPROBS: logprobs})
    # means -1, -0.1, -0.25: ranks 0, 2, 1 of three
    assert shaped.values[:, 0].tolist() == pytest.approx([1, 1 - 0.8 / 3, 1 - 0.4 / 3, 0])
    assert shaped.values[:, 1].tolist() == [1] * 4, "what is only logged stays as it is"
    assert Unlikeliness().reads == (OLD_LOGPROBS,)


def test_sum_z_scores_gate_and_minimum_differ():
    """The same two rewards, four ways to combine: only decoupling lifts the small spread of the second."""
    given = table([[1.0, 0.02], [1.0, 0.0], [0.0, 0.02], [0.0, 0.0]])
    made = rows(4)
    added = GroupNorm()(given, made).values[:, 0]
    apart = Decoupled(whiten="none")(given, made).values[:, 0]
    assert (added[0] - added[1]) < 0.1 < 1 < (apart[0] - apart[1])
    gated = GroupNorm()(Gate()(replace(given, weights=torch.tensor([1.0, 0.0])), made, {}), made).values[:, 0]
    assert gated[2] == gated[3] == gated[1] < gated[0]
    least = GroupNorm()(Minimum()(given, made, {}), made).values[:, 0]
    assert least[0] > least[1] == least[2] == least[3]
