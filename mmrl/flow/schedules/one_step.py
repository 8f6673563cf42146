"""Every group is noisy at one step."""

from dataclasses import dataclass
from typing import Literal

from mmrl.flow.dynamics import DynamicsName, FlowSDE, dynamics_of
from mmrl.flow.plan import InitialNoise, NumSteps, RolloutPlan, StepPlan, steps_where
from mmrl.flow.schedules.window import random_start
from mmrl.flow.sigmas import Spacing
from mmrl.runtime.ranges import Count, CountOrNone, NonNegative, Positive, Seed, check_ranges


@dataclass(frozen=True)
class OneStep:
    """One step of [low, high) is noisy and trains, another one for every group; the others are Euler steps (Flash-GRPO).

    arXiv:2605.15980; LongCat-Video (arXiv:2510.22200) starts a group from one noise and caps the noise of the step.
    """

    num_steps: NumSteps = 20
    low: CountOrNone = 0
    """The first step that may be noisy, counted from 0."""
    high: Count = 10
    """One past the last step that may be noisy."""
    per: Literal["group", "step"] = "group"
    """group: drawn for every request of samples by its seed, so all samples of a prompt share it. step: one for all groups of a
    training step."""
    dynamics: DynamicsName = "wan"
    level: NonNegative = 1.0
    cap: Positive | None = None
    """With flow_sde: the deviation of the noise is at most this, and the drift that of the smaller noise (LongCat: 0.45)."""
    initial_noise: InitialNoise = "sample"
    share_prefix: bool = False
    """Evaluate the steps before the noisy one once per group, whose samples then start from the same noise."""
    spacing: Spacing | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.low < self.high <= self.num_steps:
            raise ValueError(
                f"OneStep has no step from low = {self.low} up to high = {self.high} of {self.num_steps} steps: set "
                "schedule.low, high and num_steps so that low < high <= num_steps"
            )
        if self.cap is not None and self.dynamics != "flow_sde":
            raise ValueError(
                f"OneStep.cap is {self.cap:g}, which only flow_sde has, and dynamics is {self.dynamics!r}: set schedule.dynamics "
                '= "flow_sde", or leave cap out'
            )

    def at(self, step: int) -> RolloutPlan:
        dynamics = dynamics_of(self.dynamics, self.level) if self.cap is None else FlowSDE(self.level, self.cap)
        steps = steps_where(self.num_steps, range(self.low, self.high), StepPlan(dynamics, trained=True))
        chosen = "group" if self.per == "group" else random_start([self.seed, step], self.low, self.high - 1)
        return RolloutPlan(steps, self.spacing, initial_noise=self.initial_noise, share_prefix=self.share_prefix, noisy_at=chosen)
