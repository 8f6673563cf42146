"""Samples of a solver, noised again by training."""

from dataclasses import dataclass, field

from mmrl.flow.dynamics import SolverName, dynamics_of
from mmrl.flow.plan import InitialNoise, NumSteps, RolloutPlan, StepPlan
from mmrl.flow.sigmas import Spacing
from mmrl.flow.times import TimeSampler
from mmrl.runtime.ranges import NonNegative, check_ranges


@dataclass(frozen=True)
class Forward:
    """Samples come from a solver without density; training noises them again (DiffusionNFT, AWM)."""

    num_steps: NumSteps = 10
    solver: SolverName = "dpm2"
    """How samples are drawn: Euler steps, DPM-Solver++ of second order, or SA-Solver."""
    level: NonNegative = 0.0
    """SA-Solver's tau between sigma 0.3 and 0.9."""
    times: TimeSampler = field(default_factory=TimeSampler)
    """The times at which training noises a sample again."""
    initial_noise: InitialNoise = "sample"
    spacing: Spacing | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.times.kind == "rollout" and self.times.count > self.num_steps:
            raise ValueError(
                f"algorithm.schedule.num_steps is {self.num_steps}, and its times.count takes {self.times.count} of those "
                f"steps: set algorithm.schedule.times.count to {self.num_steps} or less, or take more steps"
            )

    def at(self, step: int) -> RolloutPlan:
        steps = (StepPlan(dynamics_of(self.solver, self.level)),) * self.num_steps
        return RolloutPlan(steps, self.spacing, initial_noise=self.initial_noise, forward=self.times)
