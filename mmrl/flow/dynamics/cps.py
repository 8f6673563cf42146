"""Sampling that keeps the coefficients of the path."""

import math
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from mmrl.core.ranges import NonNegative, check_ranges
from mmrl.flow.dynamics.base import Gaussian, at_least_float32, renewal


@dataclass(frozen=True)
class CPS:
    """mean = (1 - sigma') data + sqrt(sigma'^2 - S^2) noise, S = sigma' sin(level pi / 2) (arXiv:2509.05952).

    Coefficients-preserving sampling. Its log-density is -(x' - mean)^2, as its authors clip it.
    """

    level: NonNegative
    """Share of the noise that is drawn anew: 0 = none, 1 = all."""

    __post_init__ = check_ranges
    draws_at_end = False

    @property
    def draws_noise(self) -> bool:
        return self.level != 0

    def diffusion(self, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """S / sqrt(-dt) of step `index` of the table `sigmas`."""
        sigma, sigma_next = sigmas[index], sigmas[index + 1]
        return sigma_next * math.sin(self.level * math.pi / 2) / (sigma - sigma_next).sqrt()

    def deviation(self, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        return sigmas[index + 1] * math.sin(self.level * math.pi / 2)

    def transition(
        self, x: Float[Tensor, "n ..."], v: Float[Tensor, "n ..."], sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]
    ) -> Gaussian:
        x = at_least_float32(x)
        std = self.deviation(sigmas.to(x), index)
        return Gaussian(renewal(x, v.to(x), sigmas.to(x), index, std), std, normalized=False)
