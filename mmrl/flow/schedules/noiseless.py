"""Samples drawn without trained noise: noised again by training, compared with a teacher, or given a reward's gradient."""

from dataclasses import dataclass, field

from mmrl.flow.dynamics import SolverName, dynamics_of
from mmrl.flow.plan import InitialNoise, NumSteps, RolloutPlan, StepPlan
from mmrl.flow.sigmas import Spacing
from mmrl.flow.surrogate import SurrogatePath
from mmrl.flow.times import TimeSampler
from mmrl.runtime.ranges import NonNegative, PositiveShare, check_ranges


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


@dataclass(frozen=True)
class OwnPath:
    """Euler steps without noise; the first of them train on velocities or means, at the policy's own latents (DiffusionOPD)."""

    num_steps: NumSteps = 10
    reach: PositiveShare = 0.99
    """The share of the steps that train, from the first on, rounded down to at least one."""
    initial_noise: InitialNoise = "sample"
    spacing: Spacing | None = None

    __post_init__ = check_ranges

    def at(self, step: int) -> RolloutPlan:
        count = max(1, int(self.reach * self.num_steps + 1e-9))
        return RolloutPlan((StepPlan(),) * self.num_steps, self.spacing, initial_noise=self.initial_noise, imitate=count)


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
