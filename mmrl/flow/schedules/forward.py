"""Samples of a solver, noised again by training."""

from dataclasses import dataclass, field

from mmrl.core.ranges import NonNegative, check_ranges
from mmrl.flow.dynamics import SolverName, dynamics_of
from mmrl.flow.plan import InitialNoise, NumSteps, RolloutPlan, StepPlan
from mmrl.flow.sigmas import Spacing
from mmrl.flow.times import TimeSampler


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

    __post_init__ = check_ranges

    def at(self, step: int) -> RolloutPlan:
        steps = (StepPlan(dynamics_of(self.solver, self.level)),) * self.num_steps
        return RolloutPlan(steps, self.spacing, initial_noise=self.initial_noise, forward=self.times)
