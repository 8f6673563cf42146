"""Rewards on video questions against Video-R1, TW-GRPO and the usual temporal IoU; where ours differ on purpose, it says why."""

from pathlib import Path
from typing import Any

import pytest

from mmrl.answers.block import keeps_format
from mmrl.answers.spans.interval import Interval, temporal_iou, union_iou
from mmrl.app.plugins.resolve import load
from mmrl.core.types import Group, Prompt, Sample, Scored
from tests.numerics.registry import Vector, check, close

REWARDS = Path(__file__).resolve().parents[2] / "rewards"
BETTER_THAN_VIDEO_R1 = {
    ("multiple choice", "B."): 1.0,  # there "B." is not B
    ("numerical", "3.0"): 1.0,  # there both numbers must have a point, or neither
    ("numerical", "1000"): 1.0,  # and the same for commas
    ("numerical", "3.001"): 0.0,  # there numbers are rounded to two digits; here a tolerance is asked for
    ("regression", "1,0"): 0.0,  # there commas vanish, so that 1,0 is ten
    ("regression", "10"): 1.0,  # there 1 - 1e-10
    ("multiple choice", "<answer>A</answer><answer>B</answer>"): 1.0,  # there the first answer counts
}


def scored(name: str, answer: Any, text: str, columns: dict[str, Any] | None = None, **fields: Any) -> float | None:
    """What a shipped reward says of one text."""
    reward = load(str(REWARDS / f"{name}.py"), "rewards")(**fields)
    (score,) = reward(Group(0, Prompt("p", "?", (), answer, columns or {}), (Sample(text),)))
    return score.value if isinstance(score, Scored) else score


@check("video_r1_rewards")
def video_r1_rewards(vector: Vector) -> None:
    for case in vector.outputs["cases"]:
        kind, truth = case["problem_type"], case.get("gt", case.get("solution"))
        text = case.get("completion", f"<answer>{case.get('answer')}</answer>")
        columns = {"problem_type": kind}
        if kind == "unknown":
            with pytest.raises(ValueError, match="'unknown', which no reward is for"):
                scored("by_type", truth, text, columns)
            continue
        expected = BETTER_THAN_VIDEO_R1.get((kind, case.get("answer", text)), case["reward"])
        if (kind, truth) in (("regression", "0"), ("numerical", "3.0")) and case["reward"] != expected:
            assert scored("number", truth, text, absolute=0.005) == case["reward"]
        close(scored("by_type", truth, text, columns), expected, 2e-10, f"{case}")
    for case in vector.outputs["format"]:
        # a newline after the answer and an opening tag written by the chat template are forgiven here
        forgiven = case["completion"].endswith("\n")
        assert keeps_format(case["completion"], "think") == (forgiven or bool(case["reward"])), case


@check("temporal_iou")
def temporal_iou_of_pairs(vector: Vector) -> None:
    """Spans without length and inverted ones are no spans: as answers they score 0, as the file demands."""
    for (predicted, truth), hull, union in zip(
        vector.inputs["pairs"], vector.outputs["hull"], vector.outputs["set_union"], strict=True
    ):
        true = Interval(*truth)
        if predicted[0] < predicted[1]:
            close(temporal_iou(Interval(*predicted), true), hull)
            close(union_iou([Interval(*predicted)], [true]), union)
        else:
            with pytest.raises(ValueError, match="no span"):
                Interval(*predicted)
        close(scored("temporal_iou", true, f"<answer>{predicted[0]} to {predicted[1]}</answer>"), hull)


@check("tw_grpo_soft_reward")
def tw_grpo_soft_reward(vector: Vector) -> None:
    for case in vector.outputs["cases"]:
        for kind in ("soft", "hard"):
            ours = scored("choice", case["solution"], case["completion"], kind={"soft": "soft", "hard": "exact"}[kind])
            close(ours, float(case[kind]), what=f"{kind} {case}")
