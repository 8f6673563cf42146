"""Noisy one-step branches off a deterministic trunk."""

from dataclasses import dataclass

from mmrl.flow.dynamics import DynamicsName, dynamics_of
from mmrl.flow.plan import InitialNoise, NumSteps, RolloutPlan, StepPlan, steps_where
from mmrl.flow.sigmas import Spacing
from mmrl.runtime.ranges import Count, CountOrNone, NonNegative, check_ranges


@dataclass(frozen=True)
class Branching:
    """Noisy one-step branches off a deterministic trunk, each finished without noise (TempFlow-GRPO, arXiv:2508.04324).

    Every sample differs from its siblings by one step's noise only, so its reward is exactly that step's. One trunk gives
    branches * len(at_steps) samples, and all of them begin from its noise; a group may have several trunks.
    """

    num_steps: NumSteps = 10
    branches: Count = 6
    """Noisy children of the trunk at every step it branches at."""
    at_steps: tuple[CountOrNone, ...] | None = None
    """None: all but the last; fewer cost less."""
    dynamics: DynamicsName = "flow_sde"
    level: NonNegative = 0.7
    initial_noise: InitialNoise = "sample"
    spacing: Spacing | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self._steps or not set(self._steps) <= set(range(self.num_steps)):
            raise ValueError(
                f"Branching.at_steps is {self.at_steps}: name at least one of the steps 0 to {self.num_steps - 1} to branch at"
            )

    @property
    def group_size(self) -> int:
        """Samples of one trunk."""
        return self.branches * len(self._steps)

    @property
    def _steps(self) -> tuple[int, ...]:
        return tuple(range(self.num_steps - 1)) if self.at_steps is None else self.at_steps

    def at(self, step: int) -> RolloutPlan:
        branch = StepPlan(dynamics_of(self.dynamics, self.level), trained=True, branch=self.branches)
        return RolloutPlan(
            steps_where(self.num_steps, self._steps, branch),
            self.spacing,
            shape="branches",
            initial_noise=self.initial_noise,
        )
