"""Tasks of points: a flow policy draws points of the plane, and runs are compared at an equal number of network calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import RampDecay
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.types import Group, Request
from mmrl.flow.plan import RolloutPlan, StepPlan
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.evidence.task import Ended, MakeSampler, Task, mean, weights_of
from tests.support import flow_fakes

FRESH = 64
Score = Callable[[Group], list[float]]


@dataclass
class CountedFlow(flow_fakes.FakeFlowPolicy):
    """The policy of points, which counts how many rows went through its network."""

    seed: int = 0
    calls: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        torch.manual_seed(self.seed)
        for layer in (0, 2):
            self.nets["policy"][layer].reset_parameters()  # type: ignore[operator, index]
        for name in ("ref", "ema"):
            self.nets[name].load_state_dict(self.nets["policy"].state_dict())

    def velocity(self, model: str, x: Tensor, t: Tensor, c: Tensor) -> Tensor:
        self.calls += x[..., 0].numel()
        return super().velocity(model, x, t, c)


@dataclass(frozen=True)
class PointTask(Task):
    """A reward for points, and how many network calls a run may make."""

    reward: Score = flow_fakes.nearness
    figure: Callable[[Sequence[Group]], float] = lambda groups: mean([mean(flow_fakes.nearness(group)) for group in groups])
    calls: int = 60_000
    """Rows through the network, of sampling and of reading with and without gradient."""
    prompts_per_step: int = 3
    lr: float = 1e-2

    def run(self, algorithm: Algorithm, seed: int, make_sampler: MakeSampler | None = None) -> Ended:
        """Train until the calls are made, and measure with the deterministic sampler of ten steps."""
        policy, prompts = CountedFlow(ema_decay=RampDecay(slope=0.01, most=0.5), seed=seed), flow_fakes.prompts()
        settings = TrainSettings(
            steps=10_000,
            prompts_per_step=self.prompts_per_step,
            micro_batch=100_000,
            seed=seed,
            optimizer=OptimizerSettings(lr=self.lr),
        )
        rewards = RewardRunner([NamedReward("point", self.reward)])
        trainer = Trainer(policy, algorithm, (make_sampler or Shuffled)(prompts, seed), rewards, settings)
        while policy.calls < self.calls:
            trainer.step()
        requests = [Request(prompt, FRESH, i, seed=10_000 * (seed + 1) + i) for i, prompt in enumerate(prompts)]
        groups = policy.rollout(requests, RolloutPlan((StepPlan(),) * 10)).groups
        return Ended(self.figure(groups), weights_of(policy))
