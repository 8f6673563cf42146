"""Methods for image generators against Flow-GRPO or themselves without their idea, at an equal cost of network calls."""

import math
from dataclasses import replace
from typing import Any, cast

import torch

from mmrl.algorithms.advantages.group import ReinforcePlusPlus
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.flow import FlowKL
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets import PRESETS
from mmrl.core.types import Group
from mmrl.flow.schedules import Branching, Forward, Full, Tree, Window
from tests.evidence.plain import uncompared
from tests.evidence.points import Finished, FinishedTask, PointTask, TaughtCaptions, TaughtFlow, on_its_side, outward, sideways
from tests.evidence.task import Row, mean
from tests.flow.test_learning import CLIP, small
from tests.support.flow_fakes import nearness

POINTS = PointTask("points", "three captions, each with a point of the plane", "minus the mean distance to the caption's point")
FLOW = small("flow_grpo")
PLAIN = replace(FLOW, objective=((1.0, Clip(low=CLIP, high=CLIP)),))
WITH_A_TEACHER = replace(
    POINTS, name="points_with_a_teacher", claim="three captions, each with a point of the plane, and a teacher that knows them"
)


def closeness(group: Group) -> list[float]:
    """exp(-distance to the caption's point), above 0."""
    return [math.exp(value) for value in nearness(group)]


NEAR = PointTask(
    "close_points",
    "three captions, each with a point of the plane, and a reward above 0 that every step's prediction can be given",
    "mean of exp(-distance to the caption's point)",
    closeness,
    lambda groups: mean([mean(closeness(group)) for group in groups]),
)
PER_STEP = replace(small("vgpo"), advantage=PRESETS["vgpo"].advantage)
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


def clipped(algorithm: Algorithm, clip: float) -> Algorithm:
    """With this range wherever ratios are clipped."""
    terms = [(coef, replace(term, low=clip, high=clip) if isinstance(term, Clip) else term) for coef, term in algorithm.objective]
    return replace(algorithm, objective=tuple(terms))


def unheld(algorithm: Algorithm) -> Algorithm:
    """Without the distance to a guided reference: the model knows no captions, and the twin has no reference either."""
    kept = [(coef, term) for coef, term in algorithm.objective if not (isinstance(term, FlowKL) and term.guidance)]
    return replace(algorithm, objective=tuple(kept))


def long(name: str) -> Algorithm:
    """The preset's own splits and window at a table of 25 steps, for groups as they are at few."""
    own, algorithm = PRESETS[name].schedule, small(name)
    changes: dict[str, Any] = {"num_steps": 25}
    match own:
        case Window():
            changes |= {"size": own.size, "dwell": 2, "high": own.high or 24}
        case Branching():
            changes |= {"at_steps": (0, 4, 8), "branches": 4}
        case Tree():
            changes |= {"split_steps": own.split_steps[:3]}
        case _:
            pass
    schedule: Any = replace(cast(Any, algorithm.schedule), **changes)
    size = schedule.group_size if isinstance(schedule, Branching) else algorithm.group_size
    return replace(algorithm, schedule=schedule, group_size=size)


LONG_CLIP = 5e-2
"""The best for flow_grpo of seven from 2e-3 to 3e-1 at 25 steps; at six, `CLIP` and its neighbours are level."""
CIRCLE = PointTask(
    "leftover_noise",
    "a taught model of points on a circle, six steps; the reward wants one side, and every bit of noise costs",
    "cosine to the caption's side minus twice the distance from the circle",
    on_its_side,
    lambda groups: mean([mean(on_its_side(group)) for group in groups]),
    TaughtFlow,
    num_steps=6,
    rates=(3e-4, 1e-3, 3e-3),
)
LONG = replace(
    CIRCLE,
    name="long_table",
    claim="a taught model of points on a circle, 25 steps, at an equal cost of sampling and training",
    num_steps=25,
    cost=60_000,
    rates=(1e-3, 3e-3, 1e-2),
)
EVERY_STEP = replace(PLAIN, schedule=replace(cast(Full, PLAIN.schedule), num_steps=25))
TUNED = replace(LONG, name="long_table_tuned")
FEW, NOISY_FEW = (replace(one, schedule=replace(cast(Full, one.schedule), num_steps=4)) for one in (small("few_step"), PLAIN))
FEW_CIRCLE = replace(
    CIRCLE,
    name="four_steps",
    claim="a taught model of points on a circle, four steps; the reward wants one side, and every bit of noise costs",
    num_steps=4,
)
SEED_RADIUS = 0.2


def rare(group: Group) -> list[float]:
    """1 within a small distance of the caption's point on the circle, which few seeds hit at the start."""
    return [float(value > -SEED_RADIUS) for value in nearness_on_circle(group)]


def nearness_on_circle(group: Group) -> list[float]:
    points = torch.stack([sample.image for sample in group.samples])
    return (-(points - torch.nn.functional.normalize(torch.tensor(group.prompt.answer), dim=0)).norm(dim=-1)).tolist()


RARE = replace(
    CIRCLE,
    name="rare_winners",
    claim="a taught model of points on a circle, of which one in fifteen earns anything, ten steps",
    measured="share of points near the caption's place on the circle",
    reward=rare,
    figure=lambda groups: mean([mean(rare(group)) for group in groups]),
    num_steps=10,
    cost=60_000,
)


def at_ten(algorithm: Algorithm) -> Algorithm:
    """In ten steps, as published."""
    return replace(algorithm, schedule=replace(cast(Forward, algorithm.schedule), num_steps=10))


CAPTIONS = replace(
    CIRCLE,
    name="without_guidance",
    claim="a taught model whose captions mean little without guidance, drawn and trained without; six steps",
    policy=TaughtCaptions,
    cost=60_000,
)
UNREWARDED = replace(
    CAPTIONS,
    name="guidance_taught",
    claim="the same where all rewards are equal, so that the reference alone teaches",
    measured="cosine to the caption's side",
    reward=lambda group: [0.0] * len(group.samples),
    figure=lambda groups: mean([mean(sideways(group)) for group in groups]),
)
PLAIN_REFERENCE = replace(
    small("crd"),
    objective=tuple((c, replace(t, guidance=None) if isinstance(t, FlowKL) else t) for c, t in small("crd").objective),
)
HACKED = FinishedTask(
    "finished_by_the_base",
    "a taught model of points on a circle; the reward wants one side and, by mistake, points far out, which late steps decide",
    "cosine to the caption's side minus twice the distance from the circle",
    replace(CIRCLE, reward=outward, num_steps=10),
    watched="the cosine alone",
)
DIVERGENCE = replace(small("flow_dppo"), epochs=4)
"""Eight updates on every batch."""
ROWS: list[Row[Any]] = [
    Row("flow_grpo", FLOW, uncompared(FLOW), "rewards compared with nothing", POINTS),
    *(
        Row(name, small(name), PLAIN, "flow_grpo without KL", POINTS)
        for name in (
            *("flow_grpo_fast", "cps", "mix_grpo", "mix_grpo_flash", "temp_flow_grpo", "dance_grpo", "branch_grpo"),
            *("branch_mix_grpo", "diffusion_nft", "awm", "flash_grpo", "unigrpo", "flow_sft", "flow_dpo", "sol_rl"),
        )
    ),
    *(Row(name, unheld(small(name)), PLAIN, "flow_grpo without KL", POINTS) for name in ("crd", "dgpo")),
    *(
        Row(name, long(name), EVERY_STEP, "flow_grpo without KL, which trains all steps, at the clip of six steps", LONG)
        for name in (
            *("flow_grpo_fast", "mix_grpo", "mix_grpo_flash", "temp_flow_grpo", "branch_mix_grpo"),
            *("diffusion_nft", "awm"),
        )
    ),
    *(
        Row(name, unheld(clipped(long(name), LONG_CLIP)), clipped(EVERY_STEP, LONG_CLIP),
            "flow_grpo without KL, which trains all steps, the clip of both tuned to it", TUNED)
        for name in (
            *("flow_grpo_fast", "mix_grpo", "mix_grpo_flash", "temp_flow_grpo", "branch_mix_grpo"),
            *("diffusion_nft", "awm", "crd", "dgpo", "flow_sft", "flow_dpo", "flash_grpo"),
        )
    ),
    Row("branch_grpo", long("branch_grpo"), long("dance_grpo"), "dance_grpo: chains that share nothing", LONG),
    Row("cps", small("cps"), PLAIN, "flow_grpo without KL, whose steps leave noise", CIRCLE),
    Row("few_step", FEW, NOISY_FEW, "flow_grpo without KL, whose steps leave noise", FEW_CIRCLE),
    Row("grpo_guard", small("grpo_guard"), replace(small("grpo_guard"), objective=PLAIN.objective, importance=()),
        "plain ratios, even steps", POINTS),
    Row("flow_dppo", DIVERGENCE, replace(DIVERGENCE, objective=PLAIN.objective), "a clip of ratios, tuned to the task", POINTS),
    Row("sol_rl", at_ten(small("sol_rl")), at_ten(small("diffusion_nft")), "diffusion_nft, which trains on all that it draws",
        RARE),
    Row("diffusion_opd", replace(small("diffusion_opd"), group_size=1), PLAIN,
        "flow_grpo without KL, which has the reward and no teacher", WITH_A_TEACHER),
    Row("vgpo", PER_STEP, PLAIN, "flow_grpo without KL: the reward of the end for every step", NEAR),
    Row("crd", small("crd"), PLAIN, "flow_grpo without KL", CAPTIONS),
    Row("crd", small("crd"), PLAIN_REFERENCE, "the reference is read without guidance, too", UNREWARDED),
    Row("mix_grpo", Finished(small("mix_grpo"), 0.6), Finished(small("mix_grpo")), "the trained weights draw all steps", HACKED),
    Row("ddpo", ALONE, replace(ALONE, advantage=ReinforcePlusPlus()), "the mean of the step for a baseline", UNEVEN),
]  # fmt: skip
ELSEWHERE = {
    "pref_grpo": "its idea is the reward: tests/plugins/test_judge_rewards.py",
}
