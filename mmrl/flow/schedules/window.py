"""Chains: noisy steps train (all but the last, a window of them, a random choice, or one), or samples are drawn without any.

Samples without trained noise are noised again by training, compared with a teacher, or given a reward's gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch

from mmrl.flow.dynamics import DPM2, DynamicsName, FlowSDE, SolverName, dynamics_of
from mmrl.flow.plan import InitialNoise, NumSteps, RolloutPlan, StepPlan, steps_where
from mmrl.flow.sigmas import Spacing
from mmrl.flow.surrogate import SurrogatePath
from mmrl.flow.times import TimeSampler
from mmrl.runtime.ranges import Count, CountOrNone, Large, NonNegative, Positive, PositiveShare, Seed, With, check_ranges


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


@dataclass(frozen=True)
class Window:
    """Only a window of steps is noisy and trains, the others are Euler steps (MixGRPO, arXiv:2507.21802; Flow-GRPO-Fast).

    progressive: the window stays `dwell` training steps, then moves by `stride`, and returns to `low` from the end.
    random: anywhere in [low, high), drawn anew at every training step from (seed, step), the same on all ranks.
    decay: the dwell falls linearly from decay[0] at step 0 of the path to decay[1] at `high`.
    exp_decay: dwell exp(-0.1 (position - 13)) from position 13 on.
    Windows are never empty: the last one ends at `high`.
    """

    num_steps: NumSteps = 25
    size: Count = 4
    """Steps in the window."""
    dynamics: DynamicsName = "flow_sde"
    level: NonNegative = 0.7
    move: Literal["progressive", "random", "decay", "exp_decay"] = "progressive"
    """How the window moves during training: one of the four ways above."""
    dwell: Large = 25
    """Training steps that the window stays at one place, for progressive and exp_decay."""
    stride: CountOrNone = 1
    """0: the window never moves."""
    decay: tuple[CountOrNone, CountOrNone] = (10, 1)
    """Training steps that the window stays at step 0 and at `high`, for decay."""
    low: CountOrNone = 0
    """The first step that a window may hold, counted from 0."""
    high: CountOrNone | None = None
    """One past the last step a window may hold; None: all but the last step. MixGRPO's code: num_steps - 2."""
    roll_back: bool = True
    """False: stay at the end."""
    overrun: bool = False
    """Let windows run past `high` and shrink there, to nothing at last, as MixGRPO's code does (which then crashes)."""
    flash: NonNegative | None = None
    """After the window take only this part of the remaining steps, with DPM-Solver++ (MixGRPO-Flash: 0.4, Flash*: 0.2)."""
    initial_noise: InitialNoise = "sample"
    share_prefix: bool = False
    """Evaluate the steps before the window once per group, whose samples then start from the same noise."""
    spacing: Spacing | None = None
    truncated_timesteps: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if not (self.low + self.size <= self.end <= self.num_steps):
            raise ValueError(
                f"Window: {self.size} steps do not fit between low = {self.low} and high = {self.end} of {self.num_steps} steps: "
                "set schedule.size, low and high so that low + size <= high <= num_steps"
            )

    @property
    def end(self) -> int:
        return self.num_steps - 1 if self.high is None else self.high

    def at(self, step: int) -> RolloutPlan:
        """Raises ValueError where `overrun` leaves nothing to train."""
        window = self.window(step)
        if not window:
            raise ValueError(
                f"Window.overrun leaves no step to train at training step {step} (MixGRPO's code crashes): set overrun = false"
            )
        last, total = window[-1], self.num_steps
        steps = steps_where(total, window, StepPlan(dynamics_of(self.dynamics, self.level), trained=True))
        if self.flash is not None:
            points = max(2, int((total - last) * self.flash))
            steps = steps[: last + 1] + (StepPlan(DPM2()),) * (points - 1)
        return RolloutPlan(
            steps,
            self.spacing,
            initial_noise=self.initial_noise,
            share_prefix=self.share_prefix,
            grid_steps=total,
            respaced_from=None if self.flash is None else last + 1,
            truncated_timesteps=self.truncated_timesteps,
        )

    def window(self, step: int) -> list[int]:
        """Indices of the noisy steps at a training step."""
        last = self.end - self.size
        start = random_start([self.seed, step], self.low, last) if self.move == "random" else self._position(step)
        return list(range(start, min(start + self.size, self.end)))

    def _position(self, step: int) -> int:
        position, elapsed = self.low, 0
        while True:
            elapsed += self._dwell(position)
            if step < elapsed:
                return position
            following = self._following(position)
            if following == position:
                return position
            if following == self.low:
                step, elapsed = step % elapsed, 0
            position = following

    def _dwell(self, position: int) -> int:
        if self.move == "decay":
            most, least = self.decay
            return max(least, int(most * (1 - position / self.end) + least * position / self.end))
        if self.move == "exp_decay":
            return math.ceil(self.dwell * math.exp(-0.1 * max(0, position - 13)))
        return self.dwell

    def _following(self, position: int) -> int:
        last = self.end if self.overrun else self.end - self.size
        moved = position + self.stride
        if moved <= last:
            return moved
        if not self.overrun and position < last:
            return last
        return self.low if self.roll_back else last


def random_start(entropy: int | Sequence[int], first: int, last: int) -> int:
    """A number in [first, last], drawn as MixGRPO draws it; the same for the same entropy."""
    return int(np.random.default_rng(entropy).integers(first, last + 1))


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
    cap: Annotated[Positive | None, With("dynamics", "flow_sde")] = None
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

    def at(self, step: int) -> RolloutPlan:
        dynamics = dynamics_of(self.dynamics, self.level) if self.cap is None else FlowSDE(self.level, self.cap)
        steps = steps_where(self.num_steps, range(self.low, self.high), StepPlan(dynamics, trained=True))
        chosen = "group" if self.per == "group" else random_start([self.seed, step], self.low, self.high - 1)
        return RolloutPlan(steps, self.spacing, initial_noise=self.initial_noise, share_prefix=self.share_prefix, noisy_at=chosen)


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
