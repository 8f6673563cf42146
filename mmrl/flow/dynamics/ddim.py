"""The step of DDIM with noise, written on the path of a flow."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from mmrl.core.ranges import NonNegative, check_ranges
from mmrl.flow.dynamics.base import Gaussian, at_least_float32, renewal


@dataclass(frozen=True)
class DDIM:
    """mean = (1 - sigma') data + sqrt(sigma'^2 - S^2) noise, S = eta (s' / s) sqrt(1 - a^2 / a'^2) / (a' + s').

    DDIM's with noise (arXiv:2010.02502).

    a = (1 - sigma) / n, s = sigma / n, n = sqrt((1 - sigma)^2 + sigma^2): signal and noise of a model that predicts noise. With
    eta 1 it is the step of DDPO (arXiv:2305.13301) and of DDPM. Into sigma' = 0 it draws nothing, and cannot train there.
    """

    level: NonNegative
    """eta: 0 = no noise, 1 = as much as DDPM."""

    __post_init__ = check_ranges
    draws_at_end = True

    @property
    def draws_noise(self) -> bool:
        return self.level != 0

    def deviation(self, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        sigma, sigma_next = sigmas[index], sigmas[index + 1]
        norm, norm_next = ((1 - sigma) ** 2 + sigma**2).sqrt(), ((1 - sigma_next) ** 2 + sigma_next**2).sqrt()
        kept = ((1 - sigma) / norm / ((1 - sigma_next) / norm_next)) ** 2
        return self.level * sigma_next * norm / sigma * (1 - kept).clamp(min=0).sqrt()

    def transition(
        self, x: Float[Tensor, "n ..."], v: Float[Tensor, "n ..."], sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]
    ) -> Gaussian:
        x = at_least_float32(x)
        std = self.deviation(sigmas.to(x), index)
        return Gaussian(renewal(x, v.to(x), sigmas.to(x), index, std), std)
