"""Schedules: training step -> RolloutPlan, as pure functions, so every rank and every resumed run has the same plan."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from mmrl.flow.plan import RolloutPlan, StepPlan, steps_where
from mmrl.flow.sde import Dynamics
from mmrl.flow.sigmas import Spacing
from mmrl.flow.times import TimeSampler

InitialNoise = Literal["sample", "group"]


@dataclass(frozen=True)
class Full:
    """Every step but the last is noisy and trains (Flow-GRPO, arXiv:2505.05470; DanceGRPO, arXiv:2505.07818)."""

    num_steps: int = 10
    dynamics: Dynamics = "flow_sde"
    level: float = 0.7
    last: Literal["ode", "noisy", "trained"] = "ode"
    """ode: it returns the predicted data, so no noise is left. noisy: drawn, never trained (Flow-GRPO's code; its noise stays
    in the picture unless the spacing ends with a tiny step). trained: as every other step."""
    trained_steps: int | None = None
    """Train only so many first steps; None: all that may."""
    trained_per_row: int | None = None
    """Every sample trains a random choice of so many of them (DanceGRPO)."""
    initial_noise: InitialNoise = "sample"
    spacing: Spacing | None = None
    truncated_timesteps: bool = False

    def __post_init__(self) -> None:
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
            StepPlan(self.dynamics, self.level, trained=i < trained) if i < noisy else StepPlan() for i in range(self.num_steps)
        )
        return RolloutPlan(
            steps,
            self.spacing,
            initial_noise=self.initial_noise,
            trained_per_row=self.trained_per_row,
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

    num_steps: int = 25
    size: int = 4
    dynamics: Dynamics = "flow_sde"
    level: float = 0.7
    move: Literal["progressive", "random", "decay", "exp_decay"] = "progressive"
    dwell: int = 25
    stride: int = 1
    """0: the window never moves."""
    decay: tuple[int, int] = (10, 1)
    low: int = 0
    high: int | None = None
    """One past the last step a window may hold; None: all but the last step. MixGRPO's code: num_steps - 2."""
    roll_back: bool = True
    """False: stay at the end."""
    overrun: bool = False
    """Let windows run past `high` and shrink there, to nothing at last, as MixGRPO's code does (which then crashes)."""
    flash: float | None = None
    """After the window take only this part of the remaining steps, with DPM-Solver++ (MixGRPO-Flash: 0.4, Flash*: 0.2)."""
    initial_noise: InitialNoise = "sample"
    share_prefix: bool = False
    spacing: Spacing | None = None
    truncated_timesteps: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.low >= 0 and self.low + self.size <= self.end <= self.num_steps and self.size >= 1):
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
        steps = steps_where(total, window, StepPlan(self.dynamics, self.level, trained=True))
        if self.flash is not None:
            points = max(2, int((total - last) * self.flash))
            steps = steps[: last + 1] + (StepPlan("dpm2"),) * (points - 1)
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

    num_steps: int = 10
    candidates: tuple[int, ...] = (1, 2, 3, 4, 5)
    count: int = 2
    dynamics: Dynamics = "flow_sde"
    level: float = 0.7
    initial_noise: InitialNoise = "sample"
    spacing: Spacing | None = None
    seed: int = 42

    def __post_init__(self) -> None:
        if not 1 <= self.count <= len(set(self.candidates)) or not set(self.candidates) < set(range(self.num_steps)):
            raise ValueError(
                f"RandomSubset chooses {self.count} of the steps {list(self.candidates)} of {self.num_steps}: "
                "give it at least as many candidates, all of them steps, and leave one step out"
            )

    def at(self, step: int) -> RolloutPlan:
        chosen = self.chosen(step)
        steps = steps_where(self.num_steps, chosen, StepPlan(self.dynamics, self.level, trained=True))
        return RolloutPlan(steps, self.spacing, initial_noise=self.initial_noise)

    def chosen(self, step: int) -> list[int]:
        """The noisy steps at a training step, in the order drawn."""
        order = torch.randperm(len(self.candidates), generator=torch.Generator().manual_seed(self.seed + step))
        return [self.candidates[int(i)] for i in order[: self.count]]


@dataclass(frozen=True)
class Branching:
    """Noisy one-step branches off a deterministic trunk, each finished without noise (TempFlow-GRPO, arXiv:2508.04324).

    Every sample differs from its siblings by one step's noise only, so its reward is exactly that step's. One trunk gives
    branches * len(at_steps) samples; a group of several trunks compares the branches of a step over all of them (the paper's
    groups of a prompt), a group of one trunk compares siblings only (its code).
    """

    num_steps: int = 10
    branches: int = 6
    at_steps: tuple[int, ...] | None = None
    """None: all but the last; fewer cost less."""
    dynamics: Dynamics = "flow_sde"
    level: float = 0.7
    initial_noise: InitialNoise = "sample"
    spacing: Spacing | None = None

    def __post_init__(self) -> None:
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
        branch = StepPlan(self.dynamics, self.level, trained=True, branch=self.branches)
        return RolloutPlan(
            steps_where(self.num_steps, self._steps, branch),
            self.spacing,
            shape="branches",
            initial_noise=self.initial_noise,
        )


@dataclass(frozen=True)
class Tree:
    """All steps are noisy; at split steps every latent has `factor` children; samples are the leaves (BranchGRPO).

    arXiv:2509.06040. Prefixes are shared, so 16 leaves of 20 steps cost 203 forwards in place of 320. Split steps are clamped
    to the last one. With a `window` only its steps and the splits are noisy and train (its mixed mode).
    """

    num_steps: int = 20
    split_steps: tuple[int, ...] = (0, 3, 6, 9)
    factor: int = 2
    split_noise: float = 4.0
    """Noise at splits, in units of S."""
    nominal_density: bool = False
    """The code evaluates split edges with S, not split_noise S: their log-ratios are then split_noise times as noisy."""
    dynamics: Dynamics = "dance_sde"
    level: float = 0.3
    last: Literal["ode", "trained"] = "trained"
    pruned_depths: tuple[int, ...] = ()
    """Edges that do not train, by the depth of their child (step + 1)."""
    slide_every: int = 0
    """Move pruned_depths up by one every so many training steps; 0: never."""
    stop_depth: int = 9
    """Sliding ends when the first pruned depth is here."""
    first_half_only: bool = False
    """After the last split train only the first half of every chain (the code's width pruning 1)."""
    window: tuple[int, int] | None = None
    """(first step, number of steps) outside of which steps are deterministic, splits excepted; None: all are noisy."""
    window_every: int = 0
    """Move the window by one step every so many training steps, and back to its first place from the end; 0: never."""
    initial_noise: InitialNoise = "group"
    spacing: Spacing | None = None
    truncated_timesteps: bool = False

    def __post_init__(self) -> None:
        if self.window is not None and not (self.window[0] >= 0 < self.window[1] <= self.num_steps - self.window[0]):
            raise ValueError(
                f"Tree.window is {self.window}: {self.window[1]} steps from step {self.window[0]} on do not fit into "
                f"{self.num_steps} steps: set schedule.window = [first, count] with first + count <= num_steps"
            )

    @property
    def splits(self) -> tuple[int, ...]:
        return tuple(sorted({min(max(step, 0), self.num_steps - 1) for step in self.split_steps}))

    @property
    def group_size(self) -> int:
        """Leaves of one tree."""
        return self.factor ** len(self.splits)

    def at(self, step: int) -> RolloutPlan:
        last_split = max(self.splits)
        half = last_split + 1 + (self.num_steps - last_split - 1) // 2
        pruned = {depth - 1 for depth in self.pruned(step)} | set(range(half, self.num_steps) if self.first_half_only else ())
        noisy = set(self.splits) | set(self.windowed(step))
        return RolloutPlan(
            tuple(self._step(i, i not in pruned) if i in noisy else StepPlan() for i in range(self.num_steps)),
            self.spacing,
            shape="tree",
            initial_noise=self.initial_noise,
            truncated_timesteps=self.truncated_timesteps,
        )

    def pruned(self, step: int) -> list[int]:
        """The pruned depths at a training step."""
        if not self.pruned_depths or not self.slide_every:
            return list(self.pruned_depths)
        shift = min(step // self.slide_every, max(0, self.pruned_depths[0] - self.stop_depth))
        return [depth - shift for depth in self.pruned_depths]

    def windowed(self, step: int) -> range:
        """The steps that are noisy at a training step wherever the splits are."""
        first, count = (0, self.num_steps) if self.window is None else self.window
        if self.window_every:
            first += step // self.window_every % (self.num_steps - count - first + 1)
        return range(first, first + count)

    def _step(self, index: int, trained: bool) -> StepPlan:
        splits = index in self.splits
        if index == self.num_steps - 1 and self.last == "ode" and not splits:
            return StepPlan()
        return StepPlan(
            self.dynamics,
            self.level,
            trained,
            branch=self.factor if splits else 1,
            noise_scale=self.split_noise if splits else 1.0,
            nominal_density=splits and self.nominal_density,
        )


def even_splits(rounds: int, num_steps: int) -> tuple[int, ...]:
    """`rounds` split steps, evenly spread: int(k num_steps / rounds)."""
    return tuple(k * num_steps // rounds for k in range(rounds))


@dataclass(frozen=True)
class Forward:
    """Samples come from a solver without density; training noises them again (DiffusionNFT, AWM)."""

    num_steps: int = 10
    solver: Literal["ode", "dpm2", "sa"] = "dpm2"
    level: float = 0.0
    """SA-Solver's tau between sigma 0.3 and 0.9."""
    times: TimeSampler = field(default_factory=TimeSampler)
    initial_noise: InitialNoise = "sample"
    spacing: Spacing | None = None

    def at(self, step: int) -> RolloutPlan:
        steps = (StepPlan(self.solver, self.level),) * self.num_steps
        return RolloutPlan(steps, self.spacing, initial_noise=self.initial_noise, forward=self.times)
