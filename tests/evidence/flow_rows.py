"""Methods for image generators against Flow-GRPO or themselves without their idea, at an equal number of network calls."""

from dataclasses import replace

from mmrl.algorithms.objectives.surrogates import Clip
from tests.evidence.plain import uncompared
from tests.evidence.points import PointTask
from tests.evidence.task import Row
from tests.flow.test_learning import CLIP, small

POINTS = PointTask("points", "three captions, each with a point of the plane", "minus the mean distance to the caption's point")
FLOW = small("flow_grpo")
PLAIN = replace(FLOW, objective=((1.0, Clip(low=CLIP, high=CLIP)),))


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
]  # fmt: skip
ELSEWHERE = {"pref_grpo": "its idea is the reward: tests/plugins/test_judge_rewards.py"}
