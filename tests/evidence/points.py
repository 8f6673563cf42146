"""Tasks of points: a flow policy draws points of the plane, and runs are compared at an equal cost of network calls."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import RampDecay
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.types import Group, Reading, Request, Trace
from mmrl.flow.path import add_noise, velocity_of
from mmrl.flow.plan import evaluation_plan
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.evidence.task import Ended, MakeSampler, Task, mean, weights_of
from tests.support import flow_fakes

FRESH = 64
BACKWARD = 3
"""What a call with a gradient costs in calls without: its own, and a backward pass of twice that."""
Score = Callable[[Group], list[float]]
Figure = Callable[[Sequence[Group]], float]


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


@dataclass(frozen=True)
class PointTask(Task[Algorithm]):
    """A reward for points, and what a run may cost."""

    reward: Score = flow_fakes.nearness
    figure: Figure = lambda groups: mean([mean(flow_fakes.nearness(group)) for group in groups])
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
        settings = TrainSettings(
            steps=10_000,
            prompts_per_step=self.prompts_per_step,
            micro_batch=100_000,
            seed=seed,
            optimizer=OptimizerSettings(lr=lr),
        )
        rewards = RewardRunner([NamedReward("point", self.reward)])
        trainer = Trainer(policy, algorithm, (make_sampler or Shuffled)(prompts, seed), rewards, settings)
        while policy.cost < self.cost:
            trainer.step()
        return policy

    def fresh(self, policy: CountedFlow, seed: int, base_from: float | None = None) -> Sequence[Group]:
        """FRESH samples of every prompt, which trained nothing; the base finishes them after a share of the steps, if given."""
        requests = [Request(prompt, FRESH, i, seed=10_000 * (seed + 1) + i) for i, prompt in enumerate(flow_fakes.prompts())]
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
        return Ended(self.points.figure(groups), drawn, (mean([mean(sideways(group)) for group in groups]),))
