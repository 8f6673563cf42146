"""How a denoising step moves: one frozen part per kind of step, and the word by which a config names it.

A step draws from a Gaussian whose density can be evaluated again (`Stochastic`), or goes somewhere without one (`Solver`). A
user's schedule may put any part that implements either into its `StepPlan`s.

Letters: sigma and sigma' are the times before and after the step, dt = sigma' - sigma < 0, s the diffusion coefficient,
S = s sqrt(-dt) the deviation of the noise. All arithmetic is in float32, or in float64 if the latents are.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.flow.path import Sigmas, data_of, like_batch, noise_of
from mmrl.runtime.ranges import NonNegative, Positive, check_ranges

SA_WINDOW = (0.3, 0.9)
"""SA-Solver is stochastic between these sigmas, as in AWM's code."""
ALMOST_NOISE = 0.999
"""Tables that start a little below 1 (UniPC's, Sana's) still mean pure noise."""


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


SolverName = Literal["ode", "dpm2", "sa"]
DynamicsName = Literal["flow_sde", "dance_sde", "wan", "cps", "ddim", "ode", "dpm2", "sa"]
DYNAMICS: Mapping[str, Callable[[float], Dynamics]] = {
    "flow_sde": FlowSDE,
    "dance_sde": DanceSDE,
    "wan": lambda level: Wan(),
    "cps": CPS,
    "ddim": DDIM,
    "ode": lambda level: ODE(),
    "dpm2": lambda level: DPM2(),
    "sa": SA,
}
"""A config's word -> the part at a level; wan, ode and dpm2 have none and ignore it."""


def dynamics_of(name: DynamicsName, level: float) -> Dynamics:
    """The part that a config names: eta of flow_sde, dance_sde, cps and ddim, tau of sa."""
    return DYNAMICS[name](level)


def name_of(dynamics: Dynamics) -> str:
    """A config's word for the part; the class name of a part of the user's own."""
    known = {type(make(0.0)): name for name, make in DYNAMICS.items()}
    return known.get(type(dynamics), type(dynamics).__name__)


def stochastic_names() -> list[str]:
    """The words of the parts that have a density, sorted."""
    return sorted(name for name, make in DYNAMICS.items() if isinstance(make(1.0), Stochastic))
