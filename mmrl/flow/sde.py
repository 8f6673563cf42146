"""One step of a rollout: the Gaussian it draws from, or where it goes without noise.

Letters: sigma and sigma' are the times before and after the step, dt = sigma' - sigma < 0, s the diffusion coefficient,
S = s sqrt(-dt) the deviation of the noise. All arithmetic is in float32, or in float64 if the latents are.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.flow.path import data_of, like_batch, noise_of

Dynamics = Literal["flow_sde", "dance_sde", "wan", "cps", "ode", "dpm2", "sa"]
STOCHASTIC: frozenset[Dynamics] = frozenset({"flow_sde", "dance_sde", "wan", "cps"})
"""Those with a density. `sa` draws noise too, but has none: like ode and dpm2 its steps never train."""
SA_WINDOW = (0.3, 0.9)
"""SA-Solver is stochastic between these sigmas, as in AWM's code."""


@dataclass(frozen=True)
class Gaussian:
    """x' = mean + std * noise, for every row."""

    mean: Float[Tensor, "n ..."]
    std: Float[Tensor, " n"]
    """S, 0 where the step is deterministic."""
    normalized: bool = True
    """False: log_density is -(x' - mean)^2, without variance and constants (CPS, as its authors clip it)."""

    def draw(self, noise: Float[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
        return self.mean + like_batch(self.std, self.mean) * noise.to(self.mean)

    def log_density(self, x_next: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
        """The log-density of x' per element: the MEAN over all dimensions but the first, never their sum.

        Gradients reach the mean only; x' is detached.

        Raises:
            ValueError: a step without noise has no density.
        """
        gap = (x_next.detach().to(self.mean) - self.mean) ** 2
        dims = tuple(range(1, gap.ndim))
        if not self.normalized:
            return -gap.mean(dims)
        if bool((self.std == 0).any()):
            raise ValueError("a step without noise has no log-probability: train stochastic steps only")
        return -(gap.mean(dims) / (2 * self.std**2)) - self.std.log() - math.log(math.sqrt(2 * math.pi))


def diffusion(dynamics: Dynamics, level: float, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """s of step `index` of the table `sigmas`; 0 for steps without a density. CPS: S / sqrt(-dt).

    flow_sde: level sqrt(sigma / (1 - sigma*)), sigma* = sigma, but the table's second entry where sigma is exactly 1.
    dance_sde: level.  wan: sigmas[-1] + (sigmas[1] - sigmas[-1]) sigma, without a level.
    cps: S = sigma' sin(level pi / 2).
    """
    sigma, sigma_next = sigmas[index], sigmas[index + 1]
    if dynamics == "flow_sde":
        regular = torch.where(sigma == 1, sigmas[1], sigma)
        return level * (sigma / (1 - regular)).sqrt()
    if dynamics == "dance_sde":
        return torch.full_like(sigma, level)
    if dynamics == "wan":
        return sigmas[-1] + (sigmas[1] - sigmas[-1]) * sigma
    if dynamics == "cps":
        return sigma_next * math.sin(level * math.pi / 2) / (sigma - sigma_next).sqrt()
    return torch.zeros_like(sigma)


def deviation(dynamics: Dynamics, level: float, sigmas: Float[Tensor, " t1"], index: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """S = s sqrt(-dt) of step `index` of the table `sigmas`."""
    if dynamics == "cps":
        return sigmas[index + 1] * math.sin(level * math.pi / 2)
    return diffusion(dynamics, level, sigmas, index) * (sigmas[index] - sigmas[index + 1]).sqrt()


def transition(
    dynamics: Dynamics,
    level: float,
    x: Float[Tensor, "n ..."],
    v: Float[Tensor, "n ..."],
    sigmas: Float[Tensor, " t1"],
    index: Int[Tensor, " n"],
) -> Gaussian:
    """The Gaussian of step `index` (one per row) at latent x with velocity v.

    flow_sde (Flow-GRPO, arXiv:2505.05470), dance_sde (DanceGRPO, arXiv:2505.07818) and wan share
    mean = x (1 + s^2 dt / (2 sigma)) + v (1 + s^2 (1 - sigma) / (2 sigma)) dt;
    cps (coefficients-preserving sampling, arXiv:2509.05952): mean = (1 - sigma') data + sqrt(sigma'^2 - S^2) noise.
    Without noise (`ode`, or level 0) the mean is the Euler step.
    """
    x = x if x.dtype == torch.float64 else x.float()
    v, sigmas = v.to(x), sigmas.to(x)
    std = deviation(dynamics, level, sigmas, index)
    sigma, sigma_next = sigmas[index], sigmas[index + 1]
    if dynamics == "cps":
        left = like_batch((sigma_next**2 - std**2).clamp(min=0).sqrt(), x)
        mean = (1 - like_batch(sigma_next, x)) * data_of(x, v, sigma) + left * noise_of(x, v, sigma)
        return Gaussian(mean, std, normalized=False)
    dt = sigma_next - sigma
    half = diffusion(dynamics, level, sigmas, index) ** 2 / (2 * sigma)
    mean = x * like_batch(1 + half * dt, x) + v * like_batch((1 + half * (1 - sigma)) * dt, x)
    return Gaussian(mean, std)


def euler(x: Float[Tensor, "n ..."], v: Float[Tensor, "n ..."], sigma: float, sigma_next: float) -> Float[Tensor, "n ..."]:
    """x + (sigma' - sigma) v; DDIM and first-order DPM-Solver++ are the same thing on this path."""
    x = x if x.dtype == torch.float64 else x.float()
    return x + (sigma_next - sigma) * v.to(x)


@dataclass(frozen=True)
class Before:
    """What a multistep solver remembers of the step before: the data it predicted, and at which sigma."""

    data: Float[Tensor, "n ..."]
    sigma: float


def multistep(
    x: Float[Tensor, "n ..."],
    v: Float[Tensor, "n ..."],
    sigma: float,
    sigma_next: float,
    before: Before | None,
    tau: float = 0.0,
    noise: Float[Tensor, "n ..."] | None = None,
) -> Float[Tensor, "n ..."]:
    """DPM-Solver++ 2M in data prediction, midpoint form (arXiv:2211.01095); tau > 0 adds SA-Solver's noise (arXiv:2309.05019).

    With lambda = log((1 - sigma) / sigma), h = lambda' - lambda, D0 the predicted data and D1 its difference quotient,
    x' = e^(-tau^2 h) (sigma' / sigma) x + (1 - sigma') (1 - e^(-(1 + tau^2) h)) (D0 + D1 / 2)
    + sigma' sqrt(1 - e^(-2 tau^2 h)) noise.
    First order without a step before, at sigma 1 and into sigma' = 0, where x' = D0.
    Not implemented: SA-Solver's corrector and its own form of the second-order term.
    """
    x = x if x.dtype == torch.float64 else x.float()
    data = data_of(x, v.to(x), sigma)
    if sigma_next == 0:
        return data
    if sigma == 1:
        return euler(x, v, sigma, sigma_next)
    h = log_snr(sigma_next) - log_snr(sigma)
    if before is not None and before.sigma < 1:
        h_before = log_snr(sigma) - log_snr(before.sigma)
        data = data + (data - before.data) * (h / (2 * h_before))
    decay = tau**2 * h
    mean = math.exp(-decay) * (sigma_next / sigma) * x - (1 - sigma_next) * math.expm1(-h - decay) * data
    if tau == 0 or noise is None:
        return mean
    return mean + sigma_next * math.sqrt(-math.expm1(-2 * decay)) * noise.to(x)


def log_snr(sigma: float) -> float:
    """log((1 - sigma) / sigma), half the log of the signal-to-noise ratio."""
    return math.log1p(-sigma) - math.log(sigma)


def sa_tau(level: float, sigma: float) -> float:
    """SA-Solver's tau at a sigma: the level inside SA_WINDOW, 0 outside."""
    return level if SA_WINDOW[0] <= sigma <= SA_WINDOW[1] else 0.0
