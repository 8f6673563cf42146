"""Samples drawn without noise, of which some steps carry the gradient of a reward."""

from dataclasses import dataclass, field

from mmrl.flow.plan import InitialNoise, NumSteps, RolloutPlan, StepPlan
from mmrl.flow.sigmas import Spacing
from mmrl.flow.surrogate import SurrogatePath
from mmrl.runtime.ranges import check_ranges


@dataclass(frozen=True)
class Surrogate:
    """Euler steps without noise; the term RewardGradient evaluates some of them again, each sample its own."""

    num_steps: NumSteps = 25
    path: SurrogatePath = field(default_factory=SurrogatePath)
    """Which steps carry the gradient, and how they are joined."""
    initial_noise: InitialNoise = "sample"
    spacing: Spacing | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.path.kind != "refl" and self.path.steps > self.num_steps:
            raise ValueError(
                f"algorithm.schedule.path.steps is {self.path.steps}, and there are {self.num_steps} steps: set it to "
                f"{self.num_steps} or less, or take more steps"
            )
        if self.path.kind == "bridge" and self.num_steps < 2:
            raise ValueError("algorithm.schedule.num_steps is 1, and a bridge joins two intervals of steps: take 2 or more")

    def at(self, step: int) -> RolloutPlan:
        return RolloutPlan((StepPlan(),) * self.num_steps, self.spacing, initial_noise=self.initial_noise, surrogate=self.path)
