"""Stochastic differential equations with the flow's own marginals; they differ only in the diffusion coefficient s.

All share the Euler-Maruyama step mean = x (1 + s^2 dt / (2 sigma)) + v (1 + s^2 (1 - sigma) / (2 sigma)) dt.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.flow.dynamics.base import Gaussian, Leveled, at_least_float32
from mmrl.flow.path import like_batch
from mmrl.runtime.ranges import Positive

ALMOST_NOISE = 0.999
"""Tables that start a little below 1 (UniPC's, Sana's) still mean pure noise."""


@dataclass(frozen=True)
class EulerMaruyama:
    """The step under a diffusion coefficient s, which leaves the marginals of the flow as they are."""

    draws_at_end = True

    @abstractmethod
    def diffusion(self, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """s of step `index` of the table `sigmas`."""

    def deviation(self, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        return self.diffusion(sigmas, index) * (sigmas[index] - sigmas[index + 1]).sqrt()

    def transition(
        self, x: Float[Tensor, "n ..."], v: Float[Tensor, "n ..."], sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]
    ) -> Gaussian:
        x = at_least_float32(x)
        sigmas = sigmas.to(x)
        sigma, dt, diffusion = sigmas[index], sigmas[index + 1] - sigmas[index], self.diffusion(sigmas, index)
        half = diffusion**2 / (2 * sigma)
        mean = x * like_batch(1 + half * dt, x) + v.to(x) * like_batch((1 + half * (1 - sigma)) * dt, x)
        return Gaussian(mean, diffusion * (-dt).sqrt())


@dataclass(frozen=True)
class FlowSDE(Leveled, EulerMaruyama):
    """s = level sqrt(sigma / (1 - sigma)), with the table's second entry for the sigma below where sigma is 1 (arXiv:2505.05470).

    Flow-GRPO's. Sigmas above 0.999 count as 1: their own 1 - sigma would make the first deviation a hundred times too large.
    """

    cap: Positive | None = None
    """The deviation S of a step is at most this, and s with it (LongCat-Video, arXiv:2510.22200: 0.45)."""

    def diffusion(self, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        sigma = sigmas[index]
        regular = torch.where(sigma > ALMOST_NOISE, torch.minimum(sigma, sigmas[1]), sigma)
        s = self.level * (sigma / (1 - regular)).sqrt()
        return s if self.cap is None else torch.minimum(s, self.cap / (sigma - sigmas[index + 1]).sqrt())


@dataclass(frozen=True)
class DanceSDE(Leveled, EulerMaruyama):
    """s = level (DanceGRPO, arXiv:2505.07818)."""

    def diffusion(self, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        return torch.full_like(sigmas[index], self.level)


@dataclass(frozen=True)
class Wan(EulerMaruyama):
    """s = sigmas[-1] + (sigmas[1] - sigmas[-1]) sigma, without a level (Flow-GRPO's code for Wan, arXiv:2505.05470)."""

    draws_noise = True

    def diffusion(self, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        return sigmas[-1] + (sigmas[1] - sigmas[-1]) * sigmas[index]
