"""Presets for image generators made fit for latents of a few hundred elements and few denoising steps."""

from collections.abc import Iterator
from typing import Any

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.flow import DivergenceMask, FlowKL, RewardGradient
from mmrl.algorithms.objectives.groups_of_errors import DenoisingPreference, GroupPreference
from mmrl.app.toml.tables import KeyPath, Table
from mmrl.flow.schedules import Branching, Forward, Full, OneStep, Tree, Window
from mmrl.flow.times import TimeSampler

CLIP = 1e-2
"""Log-ratios are means over a latent's elements: the presets' ranges suit 10^4 to 10^5 of them, the small model has 256."""
DIVERGENCE = 1e-3
"""What a divergence mask takes for CLIP."""
SPREAD = 16.0
"""How much more means over 256 elements spread than over 65536, those of errors too: preferences take beta that much smaller."""
MOST_STEPS = 8


def fit_to_small_pictures(table: Table, algorithm: Algorithm) -> None:
    """Set clip ranges and the number of denoising steps where the method's own file does not.

    All methods get the same range, and preferences coefficients to match; schedules keep their kind, with at most MOST_STEPS
    steps and the model's own spacing. Weights to stay near are read without guidance, as the small model was taught, and rewards
    with a gradient have their own top, 1.
    """
    for path, value in [*of_terms(algorithm), *of_schedule(algorithm)]:
        if table.origin(path) is None or path[:2] == ("algorithm", "preset"):
            table.set(path, value, "arena")


def of_terms(algorithm: Algorithm) -> Iterator[tuple[KeyPath, object]]:
    for i, (_, term) in enumerate(algorithm.objective):
        for side in ("low", "high"):
            if isinstance(getattr(term, side, None), float):
                yield ("algorithm", "objective", str(i), side), CLIP
        match term:
            case DivergenceMask():
                yield ("algorithm", "objective", str(i), "threshold"), DIVERGENCE
            case GroupPreference() | DenoisingPreference():
                yield ("algorithm", "objective", str(i), "beta"), term.beta / SPREAD
                if isinstance(term, GroupPreference) and term.clip is not None:
                    yield ("algorithm", "objective", str(i), "clip"), term.clip * SPREAD
            case FlowKL(guidance=float()):
                yield ("algorithm", "objective", str(i), "guidance"), 1.0
            case RewardGradient(top=float()):
                yield ("algorithm", "objective", str(i), "top"), 1.0
            case _:
                pass


def of_schedule(algorithm: Algorithm) -> Iterator[tuple[KeyPath, object]]:
    schedule: Any = algorithm.schedule
    found: dict[str, object] = {}
    if schedule.num_steps > MOST_STEPS:
        found["num_steps"] = MOST_STEPS
    if schedule.spacing is not None:
        found["spacing"] = {"kind": "LinearShift", "shift": 1.0}
    match schedule:
        case Full(trained_per_row=int()):
            found["trained_per_row"] = MOST_STEPS // 2
        case Tree():
            found["split_steps"] = [0, 1, 3]
            yield ("algorithm", "group_size"), 8
        case Branching():
            found |= {"num_steps": 6, "at_steps": [0, 1], "branches": 8}
            yield ("algorithm", "group_size"), 32
        case Window():
            found |= {"size": 3, "dwell": 5}
        case OneStep():
            found |= {"high": MOST_STEPS // 2}
        case Forward(times=TimeSampler(kind="rollout", count=int(count))) if count >= MOST_STEPS:
            yield ("algorithm", "schedule", "times", "count"), MOST_STEPS - 1
    for key, value in found.items():
        yield ("algorithm", "schedule", key), value
