"""The plan of one training step: a RolloutPlan says of every denoising step how it moves and whether it trains."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.flow.dynamics import ODE, Dynamics, Stochastic, name_of, stochastic_names
from mmrl.flow.sigmas import Spacing
from mmrl.flow.surrogate import SurrogatePath
from mmrl.flow.times import TimeSampler
from mmrl.runtime.ranges import Range

NumSteps = Annotated[int, Range(1, 2**12, why="each is a pass through the network")]
Shape = Literal["chains", "tree", "branches"]
InitialNoise = Literal["sample", "group"]


@dataclass(frozen=True)
class StepPlan:
    """One denoising step."""

    dynamics: Dynamics = field(default_factory=ODE)
    trained: bool = False
    branch: int = 1
    """Children of every latent at this step (tree), or noisy children that leave the trunk here (branches)."""
    noise_scale: float = 1.0
    """The noise drawn here, as a multiple of S (BranchGRPO's splits)."""
    nominal_density: bool = False
    """Evaluate the density with S although noise_scale S was drawn, as BranchGRPO's code does."""

    def __post_init__(self) -> None:
        if self.trained and not self.stochastic:
            raise ValueError(
                f"a {name_of(self.dynamics)!r} step has no log-probability, so it cannot train: use one of {stochastic_names()}"
            )
        if self.trained and not self.dynamics.draws_noise:
            raise ValueError(f"a trained {name_of(self.dynamics)!r} step has level 0, so it draws nothing: set its level above 0")

    @property
    def stochastic(self) -> bool:
        """True if the step has a density."""
        return isinstance(self.dynamics, Stochastic)

    @property
    def density_scale(self) -> float:
        """The deviation of the density over S."""
        return 1.0 if self.nominal_density else self.noise_scale


@dataclass(frozen=True)
class RolloutPlan:
    """How the samples of one step are drawn. Policies get sigmas from it; mmrl.flow.layout decides which rows share latents."""

    steps: tuple[StepPlan, ...]
    spacing: Spacing | None = None
    """None: that of the model's own scheduler."""
    shape: Shape = "chains"
    """chains: every sample its own; tree: samples are the leaves of trees that split at steps with branch > 1;
    branches: noisy children leave a deterministic trunk, and end without further noise."""
    initial_noise: InitialNoise = "sample"
    """Whether the samples of a group start from the same noise."""
    share_prefix: bool = False
    """Chains with the same initial noise: evaluate the steps before the first noisy one once per group."""
    grid_steps: int | None = None
    """Steps of the grid of times; None: as many as `steps`."""
    respaced_from: int | None = None
    """From this step on the rest of the grid is divided evenly (MixGRPO-Flash: fewer steps after the window)."""
    trained_per_row: int | None = None
    """Every sample trains this many of the trained steps, chosen at random (DanceGRPO)."""
    noisy_at: int | Literal["group"] | None = None
    """Only one of the noisy steps draws noise and trains, the others are Euler steps: this one, or one that every group draws by
    its seed (Flash-GRPO). None: all of them."""
    forward: TimeSampler | None = None
    """Train on noised copies of the finished samples, at these times, instead of on the steps."""
    surrogate: SurrogatePath | None = None
    """Train on the gradient of rewards along this path, instead of on densities of the steps."""
    imitate: int = 0
    """Train this many of the first steps on velocities or means alone, which need no noise: a teacher's, on the policy's own path
    (DiffusionOPD)."""
    previews: bool = False
    """Decode what every step predicts, so that rewards can be asked about it."""
    truncated_timesteps: bool = False
    """Feed the network int(1000 sigma), as DanceGRPO's relatives do; the step itself uses the exact sigma."""
    guidance: float | None = None
    """Guidance scale of this rollout, where nothing trains; None: the policy's."""
    base_from: int | None = None
    """From this step on the reference's weights draw, where nothing trains, so that hacked detail stays out (MixGRPO's hybrid
    sampling, arXiv:2507.21802). None: never."""

    def __post_init__(self) -> None:
        last = self.steps[-1].dynamics
        if self.steps[-1].trained and isinstance(last, Stochastic) and not last.draws_at_end:
            raise ValueError(f"the last {name_of(last)} step draws no noise, so it cannot train: set schedule.last = 'ode'")
        if self.noisy_at is not None and self.shape != "chains":
            raise ValueError(f"noisy_at chooses a step of whole chains, and this plan makes a {self.shape}: leave it out")
        if self.forward is not None and any(step.trained for step in self.steps):
            raise ValueError("a forward plan trains on noised samples, not on steps: use ode, dpm2 or sa steps")
        if self.base_from is not None and self.trains:
            raise ValueError(
                f"a plan that trains finishes with the weights from before training from step {self.base_from} on, and ratios "
                "would not start at 1: mix weights in evaluations only (evaluation.base_from)"
            )
        if self.guidance is not None and self.trains:
            raise ValueError(
                f"a plan that trains has guidance {self.guidance} of its own, but training evaluates its steps again with the "
                "policy's, and ratios would not start at 1: set policy.guidance instead"
            )

    @property
    def trains(self) -> bool:
        """Is there anything to train on along it?"""
        further = self.forward is not None or self.surrogate is not None or self.imitate > 0
        return further or any(step.trained for step in self.steps)

    @property
    def num_steps(self) -> int:
        """Model evaluations of one sample."""
        return len(self.steps)

    def sigmas(self, default: Spacing, image_tokens: int | None = None) -> Float[Tensor, " t1"]:
        """The table of sigmas, float32; `default` is the model's own spacing."""
        spacing = self.spacing or default
        grid_steps = self.grid_steps or self.num_steps
        grid = spacing.grid(grid_steps)
        if self.respaced_from is not None:
            at = self.respaced_from
            rest = torch.linspace(float(grid[at]), 0, self.num_steps - at + 1, dtype=grid.dtype)
            grid = torch.cat([grid[:at], rest])
        return spacing.sigmas(grid, image_tokens, grid_steps)

    def deviations(self, sigmas: Float[Tensor, " t1"]) -> Float[Tensor, " t"]:
        """S of the density of every step that trains, 0 at the others: the reading `std`."""
        values = torch.zeros(self.num_steps)
        for i, step in enumerate(self.steps):
            if step.trained and isinstance(step.dynamics, Stochastic):
                values[i] = step.dynamics.deviation(sigmas, torch.tensor([i]))[0] * step.density_scale
        return values

    def pulls(self, sigmas: Float[Tensor, " t1"]) -> Float[Tensor, " t"]:
        """|d log p / d velocity| of every step that trains for a noise of 1, 0 at the others: the reading `pull`."""
        values = torch.zeros(self.num_steps)
        for i, step in enumerate(self.steps):
            if step.trained and isinstance(step.dynamics, Stochastic):
                # A mean is linear in latent and velocity, so that of a velocity of 1 at latent 0 is its slope.
                unit = step.dynamics.transition(torch.zeros(1), torch.ones(1), sigmas, torch.tensor([i]))
                drawn, density = unit.std * step.noise_scale, unit.std * step.density_scale
                values[i] = (unit.mean.abs() * drawn * (1 / density**2 if unit.normalized else 2))[0]
        return values


@runtime_checkable
class Schedule(Protocol):
    """Which plan every training step samples along; a pure function, so that ranks and resumed runs agree."""

    def at(self, step: int) -> RolloutPlan: ...


def evaluation_plan(
    num_steps: int, spacing: Spacing | None = None, guidance: float | None = None, base_from: float | None = None
) -> RolloutPlan:
    """Deterministic Euler steps that train nothing: how a model is judged. `base_from` is a share of the steps, at least one."""
    switch = None if base_from is None else max(1, round(base_from * num_steps))
    return RolloutPlan(tuple(StepPlan() for _ in range(num_steps)), spacing, guidance=guidance, base_from=switch)


def in_few_steps(plan: RolloutPlan, num_steps: int) -> RolloutPlan:
    """The plan with another number of steps, for samples that are scored and never trained: noised again once, for nothing.

    Raises:
        ValueError: the plan draws noise on the way, so that a sample's seed does not say how it looks in more steps.
    """
    if plan.forward is None or plan.steps[0].dynamics.draws_noise:
        raise ValueError(
            "scouts are samples of few steps whose initial noise decides what more steps draw, and this schedule's steps draw "
            'noise or train: set algorithm.schedule.kind = "Forward" with solver = "ode" or "dpm2"'
        )
    return replace(plan, steps=plan.steps[:1] * num_steps, forward=replace(plan.forward, count=1))


def steps_where(num_steps: int, noisy: Sequence[int], step: StepPlan) -> tuple[StepPlan, ...]:
    """`step` at the indices in `noisy`, Euler steps elsewhere."""
    chosen = set(noisy)
    return tuple(step if i in chosen else StepPlan() for i in range(num_steps))
