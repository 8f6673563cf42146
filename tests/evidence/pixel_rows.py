"""Methods that follow the gradient of a reward against Flow-GRPO, at an equal cost of network calls."""

from dataclasses import replace
from typing import cast

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.flow import RewardGradient
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets import PRESETS
from mmrl.flow.schedules import Full, Surrogate
from mmrl.flow.surrogate import SurrogatePath
from tests.evidence.pixels import PixelTask
from tests.evidence.task import Row

STEPS = 8
CLIP = 1e-2
"""The best of 3e-3, 1e-2, 3e-2 and 1e-1 for latents of 256 elements."""
PAINT = PixelTask(
    "painted_shapes",
    "a taught model of shapes, latents of 256 elements; the reward wants a colour at a place and overlooks the shape",
    "minus the squared distance to the colour there, of unseen captions",
    margin=0.005,
    watched="minus the distance to a clean drawing of the caption",
)
FLOW = PRESETS["flow_grpo"]
PLAIN = replace(
    FLOW,
    objective=((1.0, Clip(low=CLIP, high=CLIP)),),
    schedule=replace(cast(Full, FLOW.schedule), num_steps=STEPS),
    group_size=8,
)


def by_gradient(name: str, path: SurrogatePath | None = None) -> Algorithm:
    """The preset at eight steps, with its own path or another one, and no top: rewards are negative here."""
    algorithm = PRESETS[name]
    schedule = cast(Surrogate, algorithm.schedule)
    return replace(
        algorithm,
        objective=((1.0, RewardGradient()),),
        schedule=replace(schedule, num_steps=STEPS, path=path or schedule.path),
    )


BRIDGE = SurrogatePath("bridge", steps=5, bias=4.0, alpha=0.5)
AGAINST = "flow_grpo without KL, its clip tuned to the task"
ROWS = [
    *(Row(name, by_gradient(name), PLAIN, AGAINST, PAINT) for name in ("refl", "draft_k", "flow_bp")),
    Row("flow_bp", by_gradient("flow_bp", BRIDGE), PLAIN, AGAINST, replace(PAINT, name="painted_by_bridge")),
]
