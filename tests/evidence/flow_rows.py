"""Methods for image generators against Flow-GRPO or themselves without their idea, at an equal number of network calls."""

from dataclasses import replace

from mmrl.algorithms.advantages.group import ReinforcePlusPlus
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.core.types import Group
from tests.evidence.plain import uncompared
from tests.evidence.points import PointTask
from tests.evidence.task import Row
from tests.flow.test_learning import CLIP, small
from tests.support.flow_fakes import nearness

POINTS = PointTask("points", "three captions, each with a point of the plane", "minus the mean distance to the caption's point")
FLOW = small("flow_grpo")
PLAIN = replace(FLOW, objective=((1.0, Clip(low=CLIP, high=CLIP)),))
LEVELS = {"0": 0.0, "1": 4.0, "2": 8.0}
"""What every picture of a caption earns beside its own merit."""


def uneven(group: Group) -> list[float]:
    """Nearness to the caption's point, and the caption's level."""
    return [value + LEVELS[group.prompt.id] for value in nearness(group)]


UNEVEN = PointTask(
    "uneven_points",
    "three captions of which one is worth far more than another whatever is drawn, one picture each",
    "minus the mean distance to the caption's point",
    uneven,
    prompts_per_step=36,
)
ALONE = replace(small("ddpo"), group_size=1)

ROWS = [
    Row("flow_grpo", FLOW, uncompared(FLOW), "rewards compared with nothing", POINTS, short=True),
    *(
        Row(name, small(name), PLAIN, "flow_grpo without KL", POINTS)
        for name in (
            *("flow_grpo_fast", "cps", "mix_grpo", "mix_grpo_flash", "temp_flow_grpo", "dance_grpo", "branch_grpo"),
            *("branch_mix_grpo", "diffusion_nft", "awm"),
        )
    ),
    Row("grpo_guard", small("grpo_guard"), replace(small("grpo_guard"), objective=PLAIN.objective, importance=()),
        "plain ratios, even steps", POINTS),
    Row("ddpo", ALONE, replace(ALONE, advantage=ReinforcePlusPlus()), "the mean of the step for a baseline", UNEVEN),
]  # fmt: skip
ELSEWHERE = {"pref_grpo": "its idea is the reward: tests/plugins/test_judge_rewards.py"}
