"""Samples drawn without noise, along which the policy is compared with a teacher."""

from dataclasses import dataclass

from mmrl.flow.plan import InitialNoise, NumSteps, RolloutPlan, StepPlan
from mmrl.flow.sigmas import Spacing
from mmrl.runtime.ranges import PositiveShare, check_ranges


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
