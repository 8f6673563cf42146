"""Every step but the last is noisy."""

from dataclasses import dataclass
from typing import Literal

from mmrl.flow.dynamics import DynamicsName, dynamics_of
from mmrl.flow.plan import InitialNoise, NumSteps, RolloutPlan, StepPlan
from mmrl.flow.sigmas import Spacing
from mmrl.runtime.ranges import Count, NonNegative, check_ranges


@dataclass(frozen=True)
class Full:
    """Every step but the last is noisy and trains (Flow-GRPO, arXiv:2505.05470; DanceGRPO, arXiv:2505.07818)."""

    num_steps: NumSteps = 10
    dynamics: DynamicsName = "flow_sde"
    level: NonNegative = 0.7
    last: Literal["ode", "noisy", "trained"] = "ode"
    """ode: the last step returns the predicted data, so no noise is left. noisy: it draws noise but never trains (Flow-GRPO's
    code; the noise stays in the picture unless the spacing ends with a tiny step). trained: it is like every other step."""
    trained_steps: Count | None = None
    """Train only the first n steps; None: all that can."""
    trained_per_row: Count | None = None
    """Every sample trains this many of them, chosen at random (DanceGRPO)."""
    initial_noise: InitialNoise = "sample"
    spacing: Spacing | None = None
    previews: bool = False
    """Decode what every step predicts, for advantages of rewards per step (StepRewards): as many decodes and rewards as steps."""
    truncated_timesteps: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        most = self.num_steps - (self.last != "trained")
        for name in ("trained_steps", "trained_per_row"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(
                    f"Full.{name} is {value}, but {most} of the {self.num_steps} steps may train (last = {self.last!r}): "
                    f"set schedule.{name} between 1 and {most}, or schedule.num_steps higher"
                )
        if most < 1:
            raise ValueError("Full.num_steps is 1 and its last step does not train, so nothing does: set schedule.num_steps = 10")

    def at(self, step: int) -> RolloutPlan:
        noisy = self.num_steps - (self.last == "ode")
        trained = self.num_steps - (self.last != "trained")
        trained = min(trained, self.trained_steps or trained)
        steps = tuple(
            StepPlan(dynamics_of(self.dynamics, self.level), trained=i < trained) if i < noisy else StepPlan()
            for i in range(self.num_steps)
        )
        return RolloutPlan(
            steps,
            self.spacing,
            initial_noise=self.initial_noise,
            trained_per_row=self.trained_per_row,
            previews=self.previews,
            truncated_timesteps=self.truncated_timesteps,
        )
