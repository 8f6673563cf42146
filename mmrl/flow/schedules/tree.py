"""Samples are the leaves of trees, or branches off a trunk."""

from dataclasses import dataclass
from typing import Annotated, Literal

from mmrl.flow.dynamics import DynamicsName, dynamics_of
from mmrl.flow.plan import InitialNoise, NumSteps, RolloutPlan, StepPlan, steps_where
from mmrl.flow.sigmas import Spacing
from mmrl.runtime.ranges import Count, CountOrNone, LargeOrNone, NonNegative, Range, check_ranges


@dataclass(frozen=True)
class Tree:
    """All steps are noisy; at split steps every latent has `factor` children; samples are the leaves (BranchGRPO).

    arXiv:2509.06040. Prefixes are shared, so 16 leaves of 20 steps cost 203 forwards in place of 320. Split steps are clamped
    to the last one. With a `window` only its steps and the splits are noisy and train (its mixed mode).
    """

    num_steps: NumSteps = 20
    split_steps: tuple[CountOrNone, ...] = (0, 3, 6, 9)
    """Steps at which every latent has children, counted from 0."""
    factor: Annotated[int, Range(2, 64)] = 2
    """Children of a latent at a split."""
    split_noise: NonNegative = 4.0
    """Noise at splits, in units of S."""
    nominal_density: bool = False
    """The code evaluates split edges with S, not split_noise S: their log-ratios are then split_noise times as noisy."""
    dynamics: DynamicsName = "dance_sde"
    level: NonNegative = 0.3
    last: Literal["ode", "trained"] = "trained"
    """ode: the last step has no noise and does not train, unless it is a split. trained: it is like every other step."""
    pruned_depths: tuple[CountOrNone, ...] = ()
    """Edges that do not train, by the depth of their child (step + 1)."""
    slide_every: LargeOrNone = 0
    """Move pruned_depths up by one every n training steps; 0: never."""
    stop_depth: CountOrNone = 9
    """Sliding ends when the first pruned depth is here."""
    first_half_only: bool = False
    """After the last split train only the first half of every chain (the code's width pruning 1)."""
    window: tuple[CountOrNone, Count] | None = None
    """(first step, number of steps) outside of which steps are deterministic, splits excepted; None: all are noisy."""
    window_every: LargeOrNone = 0
    """Move the window by one step every n training steps, and back to its first place from the end; 0: never."""
    initial_noise: InitialNoise = "group"
    spacing: Spacing | None = None
    truncated_timesteps: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.window is not None and not self.window[1] <= self.num_steps - self.window[0]:
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
        pruned = {depth - 1 for depth in self.depths_to_prune(step)} | set(
            range(half, self.num_steps) if self.first_half_only else ()
        )
        noisy = set(self.splits) | set(self.noisy_at(step))
        return RolloutPlan(
            tuple(self._step(i, i not in pruned) if i in noisy else StepPlan() for i in range(self.num_steps)),
            self.spacing,
            shape="tree",
            initial_noise=self.initial_noise,
            truncated_timesteps=self.truncated_timesteps,
        )

    def depths_to_prune(self, step: int) -> list[int]:
        """The pruned depths at a training step."""
        if not self.pruned_depths or not self.slide_every:
            return list(self.pruned_depths)
        shift = min(step // self.slide_every, max(0, self.pruned_depths[0] - self.stop_depth))
        return [depth - shift for depth in self.pruned_depths]

    def noisy_at(self, step: int) -> range:
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
            dynamics_of(self.dynamics, self.level),
            trained,
            branch=self.factor if splits else 1,
            noise_scale=self.split_noise if splits else 1.0,
            nominal_density=splits and self.nominal_density,
        )


def even_splits(rounds: int, num_steps: int) -> tuple[int, ...]:
    """`rounds` split steps, evenly spread: int(k num_steps / rounds)."""
    return tuple(k * num_steps // rounds for k in range(rounds))


@dataclass(frozen=True)
class Branching:
    """Noisy one-step branches off a deterministic trunk, each finished without noise (TempFlow-GRPO, arXiv:2508.04324).

    Every sample differs from its siblings by one step's noise only, so its reward is exactly that step's. One trunk gives
    branches * len(at_steps) samples, and all of them begin from its noise; a group may have several trunks.
    """

    num_steps: NumSteps = 10
    branches: Annotated[int, Range(2, 2**20)] = 6
    """Noisy children of the trunk at every step it branches at; a lone one has no sibling to be compared with."""
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
