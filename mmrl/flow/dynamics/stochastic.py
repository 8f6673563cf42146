"""Steps that draw noise and have a density: stochastic differential equations, and steps that redraw part of their noise."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.flow.dynamics.base import Gaussian, Leveled, at_least_float32
from mmrl.flow.path import data_of, like_batch, noise_of
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


@dataclass(frozen=True)
class Renewal(Leveled):
    """mean = (1 - sigma') data + sqrt(sigma'^2 - S^2) noise: a step to sigma' that redraws S of its noise."""

    draws_at_end = False
    normalized = True

    @abstractmethod
    def deviation(self, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """S of step `index` of the table `sigmas`."""

    def transition(
        self, x: Float[Tensor, "n ..."], v: Float[Tensor, "n ..."], sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]
    ) -> Gaussian:
        x = at_least_float32(x)
        v, sigmas = v.to(x), sigmas.to(x)
        std, sigma, sigma_next = self.deviation(sigmas, index), sigmas[index], sigmas[index + 1]
        left = like_batch((sigma_next**2 - std**2).clamp(min=0).sqrt(), x)
        mean = (1 - like_batch(sigma_next, x)) * data_of(x, v, sigma) + left * noise_of(x, v, sigma)
        return Gaussian(mean, std, self.normalized)


@dataclass(frozen=True)
class CPS(Renewal):
    """mean = (1 - sigma') data + sqrt(sigma'^2 - S^2) noise, S = sigma' sin(level pi / 2) (arXiv:2509.05952).

    Coefficients-preserving sampling. Its log-density is -(x' - mean)^2, as its authors clip it; level: the share of the noise
    that is drawn anew, 0 = none, 1 = all.
    """

    normalized = False

    def deviation(self, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        return sigmas[index + 1] * math.sin(self.level * math.pi / 2)


@dataclass(frozen=True)
class DDIM(Renewal):
    """mean = (1 - sigma') data + sqrt(sigma'^2 - S^2) noise, S = eta (s' / s) sqrt(1 - a^2 / a'^2) / (a' + s').

    DDIM's with noise (arXiv:2010.02502); level: eta, 0 = no noise, 1 = as much as DDPM.

    a = (1 - sigma) / n, s = sigma / n, n = sqrt((1 - sigma)^2 + sigma^2): signal and noise of a model that predicts noise. With
    eta 1 it is the step of DDPO (arXiv:2305.13301) and of DDPM. Into sigma' = 0 it draws nothing, and cannot train there.
    """

    draws_at_end = True

    def deviation(self, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        sigma, sigma_next = sigmas[index], sigmas[index + 1]
        norm, norm_next = ((1 - sigma) ** 2 + sigma**2).sqrt(), ((1 - sigma_next) ** 2 + sigma_next**2).sqrt()
        kept = ((1 - sigma) / norm / ((1 - sigma_next) / norm_next)) ** 2
        return self.level * sigma_next * norm / sigma * (1 - kept).clamp(min=0).sqrt()
