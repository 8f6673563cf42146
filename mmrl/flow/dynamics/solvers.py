"""Steps without a density: Euler, DPM-Solver++ and SA-Solver."""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from mmrl.flow.dynamics.base import Before, Leveled, SolverStep, at_least_float32
from mmrl.flow.path import data_of

SA_WINDOW = (0.3, 0.9)
"""SA-Solver is stochastic between these sigmas, as in AWM's code."""


@dataclass(frozen=True)
class ODE:
    """x' = x + (sigma' - sigma) v, the Euler step (DDIM, arXiv:2010.02502, is the same thing on this path)."""

    draws_noise = False

    def advance(self, step: SolverStep) -> Float[Tensor, "n ..."]:
        return euler(step.x, step.v, step.sigma, step.sigma_next)


@dataclass(frozen=True)
class DPM2:
    """x' = (sigma' / sigma) x - (1 - sigma') (e^-h - 1) (D0 + D1 / 2): DPM-Solver++ 2M (arXiv:2211.01095); see `multistep`."""

    draws_noise = False

    def advance(self, step: SolverStep) -> Float[Tensor, "n ..."]:
        return multistep(step.x, step.v, step.sigma, step.sigma_next, step.before)


@dataclass(frozen=True)
class SA(Leveled):
    """DPM2 with noise sigma' sqrt(1 - e^(-2 level^2 h)) for sigma in SA_WINDOW: SA-Solver (arXiv:2309.05019); level: its tau."""

    def tau(self, sigma: float) -> float:
        """The level inside SA_WINDOW, 0 outside."""
        return self.level if SA_WINDOW[0] <= sigma <= SA_WINDOW[1] else 0.0

    def advance(self, step: SolverStep) -> Float[Tensor, "n ..."]:
        tau = self.tau(step.sigma)
        return multistep(step.x, step.v, step.sigma, step.sigma_next, step.before, tau, step.noise() if tau else None)


def euler(x: Float[Tensor, "n ..."], v: Float[Tensor, "n ..."], sigma: float, sigma_next: float) -> Float[Tensor, "n ..."]:
    """x + (sigma' - sigma) v; first-order DPM-Solver++ is the same thing on this path."""
    x = at_least_float32(x)
    return x + (sigma_next - sigma) * v.to(x)


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
    x = at_least_float32(x)
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
