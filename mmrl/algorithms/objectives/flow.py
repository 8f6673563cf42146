"""Terms for denoising transitions: what keeps the policy's steps near those of another model, or of the sampler."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.objectives.terms import (
    Clips,
    Penalty,
    ProportionalToAdvantage,
    actions_only,
    log_ratio,
    mean_square,
    ratio_metrics,
)
from mmrl.core.readings import DT, LOGPROBS, MEAN, OLD_LOGPROBS, PIXELS, SAMPLED_MEAN, STD, VELOCITY
from mmrl.core.types import Batch, Reading, Scope
from mmrl.runtime.ranges import NonNegative, Number, Positive, Share
from mmrl.runtime.tensors import masked_mean


@dataclass(frozen=True)
class FlowKL(Penalty):
    """How far a transition is from another model's, per element: mean (mu - mu_ref)^2 / (2 S^2) in the form `true`.

    no_dt divides by 2 s^2, s^2 = S^2 / (sigma - sigma'), so it is sigma - sigma' times `true` (Flow-GRPO's code); mean_mse and
    velocity_mse divide by nothing and compare means or velocities. Coefficients do not carry over from one form to another.
    """

    form: Literal["true", "no_dt", "mean_mse", "velocity_mse"] = "true"
    """true: KL divergence in nats per element. no_dt: that times sigma - sigma'. mean_mse, velocity_mse: squared distances per
    element."""
    model: Literal["ref", "ema", "old", "teacher"] = "ref"
    """The weights to stay near; teacher: the adapter of policy.teachers that the row's prompt names, with its own guidance."""
    guidance: NonNegative | None = None
    """The guidance that these are read with, while the policy has its own: training without guidance takes the model's usual
    one here (DGPO, CRD: 4.5). None: the policy's."""
    bad_share: Share = 1.0
    """What the term counts at a sample as bad as can be, of what it counts at a good one: c + (1 - c) g, with g = A / 10 + 1/2 in
    [0, 1] (CRD: 1e-3)."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        quantity = VELOCITY if self.form == "velocity_mse" else MEAN
        both = (quantity, quantity._replace(model=self.model, guidance=self.guidance))
        return both + {"true": (STD,), "no_dt": (STD, DT)}.get(self.form, ())

    @property
    def at_first_update(self) -> str | None:
        return "0" if self.model == "old" and self.guidance is None else None

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        mask = batch.rollouts.action_mask
        live, other, *_ = self.reads
        kl = actions_only(mean_square(readings[live] - readings[other]), mask)
        if self.form in ("true", "no_dt"):
            variance = torch.where(mask, readings[STD] ** 2, 1.0).clamp(min=1e-20)
            if self.form == "no_dt":
                variance = variance / torch.where(mask, readings[DT], 1.0)
            kl = kl / (2 * variance)
        infos = {"policy/kl" if self.model == "ref" else f"policy/kl_{self.model}": kl.detach()}
        if self.bad_share < 1:
            good = (batch.advantages / 10 + 0.5).clamp(0, 1).to(kl)
            kl = kl * (self.bad_share + (1 - self.bad_share) * good)
        return kl, infos


@dataclass(frozen=True)
class RatioNorm(Clips, ProportionalToAdvantage, reads=(LOGPROBS, OLD_LOGPROBS, MEAN, SAMPLED_MEAN, STD), clips="scaled_ratio"):
    """PPO's clip of log ratio = (log policy - log old + b) S, b = mean (mu - mu_old)^2 / (2 S^2) (GRPO-Guard, arXiv:2510.22319).

    It equals mean(noise * (mu - mu_old)), which lacks the bias that keeps ratios below 1 and has the same scale at all steps.
    Bounds are on that scale, 2e-6. The importance weight InverseStep makes gradients equal over steps.
    """

    low: NonNegative = 2e-6
    """The rescaled ratio counts as at least 1 - low."""
    high: NonNegative = 2e-6
    """The rescaled ratio counts as at most 1 + high."""
    bias: Literal["row", "batch"] = "row"
    """batch: one b per denoising step for all rows, which the official code has by accident; then a minibatch is never cut."""

    @property
    def scope(self) -> Scope:
        return "batch" if self.bias == "batch" else "action"

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        mask, advantages = batch.rollouts.action_mask, batch.advantages
        std = torch.where(mask, readings[STD], 1.0)
        bias = actions_only(mean_square(readings[MEAN] - readings[SAMPLED_MEAN]), mask) / (2 * std**2)
        if self.bias == "batch":
            bias = masked_mean(bias, mask, dim=0).expand_as(bias)
        difference = actions_only((readings[LOGPROBS] - readings[OLD_LOGPROBS] + bias) * std, mask)
        ratio = difference.exp()
        plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - self.low, 1 + self.high)
        values = torch.maximum(plain, clipped)
        return values, {"policy/clip_frac": (clipped > plain).to(values.dtype), **ratio_metrics(difference)}


@dataclass(frozen=True)
class DivergenceMask(ProportionalToAdvantage, reads=(LOGPROBS, OLD_LOGPROBS, MEAN, SAMPLED_MEAN, STD)):
    """-A ratio, and 0 where a step is far from the sampler's and would go farther (Flow-DPPO, arXiv:2606.11025).

    Far: mean (mu - mu_old)^2 / (2 S^2) >= threshold; farther: ratio > 1 with A > 0, or ratio < 1 with A < 0. The divergence is a
    mean over a latent's elements, as in the code (UniRL 1a7b501); the paper's sum has a threshold of as many times more.
    """

    threshold: Positive = 1e-5
    """In nats per element, or with `divide` off in squared latents."""
    divide: bool = True
    """False: mean (mu - mu_old)^2 / 2, whatever the noise of the step."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        mask, advantages = batch.rollouts.action_mask, batch.advantages
        half = actions_only(mean_square(readings[MEAN] - readings[SAMPLED_MEAN]), mask).detach() / 2
        divergence = half / torch.where(mask, readings[STD] ** 2, 1.0).clamp(min=1e-20)
        difference = log_ratio(readings, mask)
        leaving = ((difference > 0) & (advantages > 0)) | ((difference < 0) & (advantages < 0))
        stopped = leaving & ((divergence if self.divide else half) >= self.threshold)
        metrics = {"policy/clip_frac": stopped.to(half), **ratio_metrics(difference), "policy/kl_old": divergence}
        return torch.where(stopped, 0.0, -advantages * difference.exp()), metrics


@dataclass(frozen=True)
class RewardGradient(Penalty, scope="rollout"):
    """-R, or max(0, top - R), of a row's decoded picture, whose pixels carry the gradient along the schedule's Surrogate.

    R is the weighted sum of the run's rewards, all of which must have a gradient (`of_pixels`), or be logged only. ReFL
    (arXiv:2304.05977), DRaFT (arXiv:2309.17400) and FlowBP (arXiv:2606.11075) are this term along different paths; FlowBP has a
    top of 0.55 for HPSv2. There is no group and no advantage. Such runs find the faults of a reward fast: watch another one.
    """

    top: Number | None = None
    """Rows that score more teach nothing; None: all teach."""
    guidance: NonNegative | None = None
    """The guidance of the velocities that are evaluated again; None: the policy's, as the samples were drawn."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (PIXELS._replace(guidance=self.guidance),)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        raise ValueError("RewardGradient needs the rewards of a run: use with_rewards before making a Trainer")
