"""The interface of one step of a rollout: which Gaussian it draws from, or where it goes without one.

Letters: sigma and sigma' are the times before and after the step, dt = sigma' - sigma < 0, s the diffusion coefficient,
S = s sqrt(-dt) the deviation of the noise. All arithmetic is in float32, or in float64 if the latents are.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.flow.path import Sigmas, like_batch
from mmrl.runtime.ranges import NonNegative, check_ranges


@dataclass(frozen=True)
class Gaussian:
    """x' = mean + std * noise, for every row."""

    mean: Float[Tensor, "n ..."]
    std: Float[Tensor, " n"]
    """S, 0 where the step is deterministic."""
    normalized: bool = True
    """False: log_density is -(x' - mean)^2, without variance and constants (CPS, as its authors clip it)."""
    part_sizes: tuple[int, ...] = ()
    """Elements of each of several latents that are one vector, end to end; (): it is a single one."""

    def draw(self, noise: Float[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
        return self.mean + like_batch(self.std, self.mean) * noise.to(self.mean)

    def log_density(self, x_next: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
        """The log-density of x' per element: the MEAN over all dimensions but the first, never their sum.

        Of several latents, the mean of their means: each weighs the same, however many elements it has. Gradients reach the mean
        of the Gaussian only; x' is detached. Raises ValueError for a step without noise.
        """
        gap = (x_next.detach().to(self.mean) - self.mean) ** 2
        mean = mean_of_parts(gap, self.part_sizes)
        if not self.normalized:
            return -mean
        # On a GPU the host would wait for the result; audits check the deviations of every plan before anything trains.
        if self.std.device.type == "cpu" and bool((self.std == 0).any()):
            raise ValueError("a step without noise has no log-probability: train stochastic steps only")
        return -(mean / (2 * self.std**2)) - self.std.log() - math.log(math.sqrt(2 * math.pi))


def mean_of_parts(x: Float[Tensor, "n ..."], sizes: Sequence[int]) -> Float[Tensor, " n"]:
    """The mean of every row, or the mean of the means of its parts of these sizes."""
    if not sizes:
        return x.mean(tuple(range(1, x.ndim)))
    parts: tuple[Tensor, ...] = torch.split(x, list(sizes), 1)
    return torch.stack([part.mean(1) for part in parts]).mean(0)


@runtime_checkable
class Stochastic(Protocol):
    """A kind of step that draws from a Gaussian whose density can be evaluated again: the only kind that trains.

    Rows that a schedule leaves alone at such a step take an Euler step.
    """

    @property
    def draws_noise(self) -> bool:
        """False where its level is 0."""
        ...

    @property
    def draws_at_end(self) -> bool:
        """False if nothing is drawn in the last step, into sigma' = 0, so that it cannot train there."""
        ...

    def deviation(self, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """S = s sqrt(-dt) of step `index` of the table `sigmas`."""
        ...

    def transition(
        self, x: Float[Tensor, "n ..."], v: Float[Tensor, "n ..."], sigmas: Sigmas, index: Int[Tensor, " n"]
    ) -> Gaussian:
        """The Gaussian of step `index` (one per row) at latent x with velocity v."""
        ...


@dataclass(frozen=True)
class Before:
    """A multistep solver's memory of the step before: the data it predicted, and at which sigma."""

    data: Float[Tensor, "n ..."]
    sigma: float


@dataclass(frozen=True)
class SolverStep:
    """The latent x at sigma, its velocity, and where it is to go."""

    x: Float[Tensor, "n ..."]
    v: Float[Tensor, "n ..."]
    sigma: float
    sigma_next: float
    before: Before | None
    noise: Callable[[], Tensor]
    """Draws one standard normal latent per row, for solvers that want it."""


@dataclass(frozen=True)
class Leveled:
    """A step whose noise has a level, 0 = none."""

    level: NonNegative
    """How much noise a step draws; 0: none, so that no step can train."""

    __post_init__ = check_ranges

    @property
    def draws_noise(self) -> bool:
        return self.level != 0


@runtime_checkable
class Solver(Protocol):
    """A kind of step without a density, which never trains; it may draw noise all the same."""

    @property
    def draws_noise(self) -> bool: ...

    def advance(self, step: SolverStep) -> Float[Tensor, "n ..."]:
        """The latent at sigma'."""
        ...


Dynamics = Stochastic | Solver
"""How a denoising step moves."""


def at_least_float32(x: Float[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
    """The dtype that steps are computed in: float64 stays, everything else becomes float32."""
    return x if x.dtype == torch.float64 else x.float()
