"""What went wrong in other projects' reward code, as far as calling and combining rewards goes: each must not happen here."""

import math
import threading

import pytest
import torch

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.answers.boxes.box import Box
from mmrl.app.plugins.resolve import load
from mmrl.core.types import Group, MediaSize, Prompt, Rollouts, Sample, Scored
from mmrl.training.rewards.runner import NamedReward, RewardError, RewardRunner
from tests.support.rows import Nothing, rollouts, scores

VALUES = [0.78, 0.80, 0.81, 0.85, 0.79, 0.82, 0.84]


def judged(values: list[float | None]) -> tuple[RewardRunner, Rollouts, Group]:
    """A group of eight, scored by `values`; NaN stands for a judge that could not be reached."""
    group = Group(0, Prompt("p"), tuple(Sample(str(i)) for i in range(len(values))))
    n = len(values)
    rows = Rollouts((group,), torch.zeros(n, dtype=torch.long), torch.arange(n), torch.ones(n, 1, dtype=torch.bool), Nothing())
    return RewardRunner([NamedReward("judge", lambda g: values)]), rows, group


def test_a_failed_judgement_is_not_a_zero():
    """flow_grpo and Flow-Factory write 0: all others then get nearly the same advantage and the failure -2.5."""
    runner, rows, group = judged([*VALUES, math.nan])
    found = runner.scores(rows, {0: runner.score([group])[0]})
    credit = GroupNorm()(found, rows)
    assert not credit.keep[7] and credit.values[7] == 0
    alone = GroupNorm()(scores(torch.tensor(VALUES)[:, None]), rollouts(torch.ones(7, 1)))
    torch.testing.assert_close(credit.values[:7], alone.values)
    assert credit.values[:7].min() < -1 and credit.values.max() > 1
    as_zero = GroupNorm()(scores(torch.tensor([*VALUES, 0.0])[:, None]), rollouts(torch.ones(8, 1)))
    assert as_zero.values[:7].min() > 0.2, "what the zero would have done"


def test_a_stuck_reward_does_not_keep_the_run_nor_its_end():
    """Elsewhere it ends in a collective's timeout; threads left behind are daemons, so the program can end."""
    never, before = threading.Event(), set(threading.enumerate())

    def stuck(g: Group) -> list[float]:
        never.wait()
        return [1.0]

    with pytest.raises(RewardError, match=r"no answer within 0\.05 s"):
        RewardRunner([NamedReward("stuck", stuck, timeout_s=0.05)]).score([judged([1.0])[2]])
    left = set(threading.enumerate()) - before
    assert left and all(thread.daemon for thread in left)
    never.set()


def boxes(name: str, truth: object, text: str, **fields: object) -> float:
    reward = load(name, "rewards")(space="pixel", **fields)
    sizes = (MediaSize(640, 480, 640, 480),)
    [found] = reward(Group(0, Prompt("p", answer=truth), (Sample(text, media_sizes=sizes),)))
    assert isinstance(found, Scored) and found.value is not None
    return found.value


def test_boxes_of_unknown_labels_are_not_free():
    """VLM-R1's mAP drops them before counting."""
    truth = (Box(0, 0, 10, 10, label="cat"),)
    right = '{"bbox_2d": [0, 0, 10, 10], "label": "cat"}'
    more = '[{"bbox_2d": [0, 0, 10, 10], "label": "cat"}, {"bbox_2d": [20, 20, 30, 30], "label": "unicorn"}]'
    assert boxes("multi_box", truth, more, kind="map") < boxes("multi_box", truth, right, kind="map") == 1


def test_a_box_without_label_does_not_break_the_matching():
    """VLM-R1's greedy matching uses a label that may never have been set."""
    truth = (Box(0, 0, 10, 10, label="cat"),)
    assert boxes("multi_box", truth, "[0, 0, 10, 10]", labels=True) == 0
    assert boxes("multi_box", truth, "[0, 0, 10, 10]", labels=False) == 1


def test_matching_is_not_greedy():
    """Greedy takes the first box's best partner and leaves the second with nothing."""
    truth = (Box(0, 0, 10, 10), Box(0, 0, 10, 14))
    text = "[0, 0, 10, 12] [0, 0, 10, 17]"
    assert boxes("multi_box", truth, text, kind="mean_iou") == pytest.approx((10 / 12 + 14 / 17) / 2)


def test_a_pixel_of_overlap_counts():
    """VLM-R1 and GUI-G1 see none below one pixel, so that boxes in shares of the picture never overlap."""
    assert boxes("iou", Box(0, 0, 10, 1), "[0, 0, 10, 1]") == 1
    assert boxes("iou", Box(0, 0, 10, 10), "[9, 9, 20, 20]") == pytest.approx(1 / 220)
