"""Some of the candidate steps are noisy, drawn anew at every training step."""

from dataclasses import dataclass

import torch

from mmrl.flow.dynamics import DynamicsName, dynamics_of
from mmrl.flow.plan import InitialNoise, NumSteps, RolloutPlan, StepPlan, steps_where
from mmrl.flow.sigmas import Spacing
from mmrl.runtime.ranges import Count, CountOrNone, NonNegative, Seed, check_ranges


@dataclass(frozen=True)
class RandomSubset:
    """`count` of the candidate steps, not necessarily neighbours, are noisy and train; chosen by seed + step (Flow-Factory)."""

    num_steps: NumSteps = 10
    candidates: tuple[CountOrNone, ...] = (1, 2, 3, 4, 5)
    """Steps to choose from, counted from 0."""
    count: Count = 2
    """Noisy steps of a rollout."""
    dynamics: DynamicsName = "flow_sde"
    level: NonNegative = 0.7
    initial_noise: InitialNoise = "sample"
    spacing: Spacing | None = None
    seed: Seed = 42

    def __post_init__(self) -> None:
        check_ranges(self)
        if not 1 <= self.count <= len(set(self.candidates)) or not set(self.candidates) < set(range(self.num_steps)):
            raise ValueError(
                f"RandomSubset chooses {self.count} of the steps {list(self.candidates)} of {self.num_steps}: "
                "give it at least as many candidates, all of them steps, and leave one step out"
            )

    def at(self, step: int) -> RolloutPlan:
        chosen = self.choice(step)
        steps = steps_where(self.num_steps, chosen, StepPlan(dynamics_of(self.dynamics, self.level), trained=True))
        return RolloutPlan(steps, self.spacing, initial_noise=self.initial_noise)

    def choice(self, step: int) -> list[int]:
        """The noisy steps at a training step, in the order drawn."""
        order = torch.randperm(len(self.candidates), generator=torch.Generator().manual_seed(self.seed + step))
        return [self.candidates[int(i)] for i in order[: self.count]]
