"""Methods for image generators against Flow-GRPO or themselves without their idea, at an equal cost of network calls.

A flow policy draws points of the plane.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from mmrl.algorithms.advantages.group import ReinforcePlusPlus
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import RampDecay
from mmrl.algorithms.objectives.flow import FlowKL
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.types import Group, Reading, Trace
from mmrl.flow.path import add_noise, velocity_of
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Branching, Forward, Full, Tree, Window
from tests.evidence.task import (
    BACKWARD,
    FRESH,
    Ended,
    Figure,
    MakeSampler,
    Row,
    Score,
    Task,
    fresh_of,
    mean_of,
    trainer_of,
    uncompared,
    weights_of,
)
from tests.flow.test_learning import CLIP, small
from tests.support import flow_fakes
from tests.support.flow_fakes import nearness


@dataclass
class CountedFlow(flow_fakes.FakeFlowPolicy):
    """The policy of points, which counts what its calls cost: rows of sampling, and of reading those that train."""

    seed: int = 0
    cost: int = 0
    _reading: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        torch.manual_seed(self.seed)
        for layer in (0, 2):
            self.nets["policy"][layer].reset_parameters()  # type: ignore[operator, index]
        self.copy_to_shadows()

    def copy_to_shadows(self) -> None:
        for name in ("ref", "ema"):
            self.nets[name].load_state_dict(self.nets["policy"].state_dict())

    def velocity(self, model: str, x: Tensor, t: Tensor, c: Tensor) -> Tensor:
        if not self._reading:
            self.cost += x[..., 0].numel()
        return super().velocity(model, x, t, c)

    def read(self, trace: Trace, readings: Iterable[Reading], mask: Tensor) -> dict[Reading, Tensor]:
        """Counts each model once, guided ones twice, at the masked steps, as policies of real networks read them."""
        assert isinstance(trace, flow_fakes.FlowTrace)
        wanted = list(readings)
        for model, guidance in {(one.model, one.guidance) for one in wanted if one.quantity not in trace.tensors}:
            passes = 1 if guidance in (None, 1) else 2
            self.cost += passes * int(mask.sum()) * (BACKWARD if model == "policy" and torch.is_grad_enabled() else 1)
        with self._uncounted():
            return super().read(trace, wanted, mask)

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        self._reading = True
        try:
            yield
        finally:
            self._reading = False


@dataclass
class TaughtFlow(CountedFlow):
    """One that has learned to draw points of the unit circle, whatever the caption, and so knows noise from data."""

    pull: float = 0.0

    def __post_init__(self) -> None:
        self.nets = {name: circle_net().requires_grad_(name == "policy") for name in ("policy", "ref", "ema")}
        self.nets["policy"].load_state_dict(circle_weights(self.pull))
        self.copy_to_shadows()


@dataclass
class TaughtCaptions(TaughtFlow):
    """One whose points lie on the caption's side a little more often than elsewhere, which guidance makes much of."""

    pull: float = 1.0


def circle_net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


@cache
def circle_weights(pull: float = 0.0) -> dict[str, Tensor]:
    """Flow matching on points of the unit circle, a second of it.

    Args:
        pull: how far data are drawn to the caption's side before they are put on the circle; a fifth of them has no caption then.
    """
    torch.manual_seed(0)
    net, count, sides = circle_net(), 1500, torch.tensor(flow_fakes.TARGETS)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, count)
    for _ in range(count):
        angle, noise, t = torch.rand(256) * 2 * math.pi, torch.randn(256, 2), torch.rand(256)
        data, named = torch.stack([angle.cos(), angle.sin()], -1), torch.randint(3, (256,))
        captions = torch.eye(3)[named]
        if pull:
            data = nn.functional.normalize(data + pull * nn.functional.normalize(sides[named], dim=-1), dim=-1)
            captions = captions * (torch.rand(256, 1) > 0.2)
        x = torch.cat([add_noise(data, noise, t), t[:, None], captions], -1)
        loss = (net(x) - velocity_of(data, noise)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net.state_dict()


def points_of(group: Group) -> Tensor:
    return torch.stack([sample.image for sample in group.samples])


def sideways(group: Group) -> list[float]:
    """Cosine between the point and the caption's."""
    return torch.cosine_similarity(points_of(group), torch.tensor(group.prompt.answer)[None], dim=-1).tolist()


def on_its_side(group: Group) -> list[float]:
    """Cosine between the point and the caption's, minus twice its distance from the unit circle."""
    off = (points_of(group).norm(dim=-1) - 1).abs().tolist()
    return [cosine - 2 * one for cosine, one in zip(sideways(group), off, strict=True)]


def outward(group: Group) -> list[float]:
    """Cosine between the point and the caption's, plus its distance from the middle up to 2, which is a fault to find."""
    far = points_of(group).norm(dim=-1).clamp(max=2).tolist()
    return [cosine + one for cosine, one in zip(sideways(group), far, strict=True)]


NEARNESS = mean_of(flow_fakes.nearness)


@dataclass(frozen=True)
class PointTask(Task[Algorithm]):
    """A reward for points, and what a run may cost."""

    reward: Score = flow_fakes.nearness
    figure: Figure = NEARNESS
    policy: type[CountedFlow] = CountedFlow
    cost: int = 100_000
    """Calls of the network in rows; those with a gradient count `BACKWARD`."""
    prompts_per_step: int = 3
    num_steps: int = 10
    """Of the deterministic sampler that measures."""
    rates: tuple[float, ...] = (3e-3, 1e-2)
    """Learning rates: a run is the best of them, so that nobody is measured at another's rate."""

    def run(self, algorithm: Algorithm, seed: int, make_sampler: MakeSampler | None = None) -> Ended:
        """Train at each learning rate until the cost is reached, and measure; the best run."""
        return max((self.run_at(lr, algorithm, seed, make_sampler) for lr in self.rates), key=lambda ended: ended.figure)

    def run_at(self, lr: float, algorithm: Algorithm, seed: int, make_sampler: MakeSampler | None) -> Ended:
        policy = self.trained(lr, algorithm, seed, make_sampler)
        return Ended(self.figure(self.fresh(policy, seed)), weights_of(policy))

    def trained(self, lr: float, algorithm: Algorithm, seed: int, make_sampler: MakeSampler | None = None) -> CountedFlow:
        """The policy when the cost is reached."""
        policy, prompts = self.policy(ema_decay=RampDecay(slope=0.01, most=0.5), seed=seed), flow_fakes.prompts()
        sampler, settings = (make_sampler or Shuffled)(prompts, seed), {"lr": lr, "prompts_per_step": self.prompts_per_step}
        trainer = trainer_of(policy, algorithm, sampler, [("point", self.reward)], seed, **settings)
        while policy.cost < self.cost:
            trainer.step()
        return policy

    def fresh(self, policy: CountedFlow, seed: int, base_from: float | None = None) -> Sequence[Group]:
        """FRESH samples of every prompt, which trained nothing; the base finishes them after a share of the steps, if given."""
        requests = fresh_of(flow_fakes.prompts(), FRESH, seed)
        return policy.rollout(requests, evaluation_plan(self.num_steps, base_from=base_from)).groups


@dataclass(frozen=True)
class Finished:
    """An algorithm, and after which share of the steps the weights from before training finish what is measured."""

    algorithm: Algorithm
    base_from: float | None = None


@dataclass(frozen=True)
class FinishedTask(Task[Finished]):
    """Points of one run, finished in one way or another."""

    points: PointTask
    lr: float = 3e-3

    def run(self, algorithm: Finished, seed: int, make_sampler: MakeSampler | None = None) -> Ended:
        """Train until the cost is reached, and measure; what is compared of two runs is what they draw."""
        groups = self.points.fresh(self.points.trained(self.lr, algorithm.algorithm, seed), seed, algorithm.base_from)
        drawn = torch.cat([points_of(group).flatten() for group in groups])
        return Ended(self.points.figure(groups), drawn, (mean_of(sideways)(groups),))


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
    mean_of(closeness),
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
    mean_of(on_its_side),
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
    figure=mean_of(rare),
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
    figure=mean_of(sideways),
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
ELSEWHERE = {"pref_grpo": "its idea is the reward: tests/plugins/test_judge_rewards.py"}
