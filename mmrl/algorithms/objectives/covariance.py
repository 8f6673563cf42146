"""Surrogates that hold back the few actions that cost the most entropy: those where advantage and log-probability covary."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.objectives.surrogates import Clip, Values
from mmrl.algorithms.objectives.terms import Surrogate, log_ratio, ratio_metrics
from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Batch, ClipRange, Reading
from mmrl.runtime.ranges import NonNegative, Number, Range, Seed, Share
from mmrl.runtime.tensors import masked_mean


class OfTheMinibatch(Surrogate, scope="batch"):
    """Which actions are held back depends on all the others in the minibatch, so a policy may not cut it."""


@dataclass(frozen=True)
class KlCov(OfTheMinibatch):
    """-ratio A + [action is among the top `fraction` by covariance] coef |log ratio| (KL-Cov, arXiv:2505.22617).

    No clip. At least one action of the minibatch is held back.
    """

    fraction: Share = 2e-4
    """Share of the minibatch's actions that are held back."""
    coef: NonNegative = 1.0
    """Penalty of a held action per nat of |log ratio|."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        difference = log_ratio(readings, mask)
        num_held = max(1, int(self.fraction * int(mask.sum())))
        flat = torch.where(mask, covariance(readings, batch), -torch.inf).flatten()
        held = torch.zeros_like(flat)
        held[flat.topk(min(num_held, len(flat))).indices] = 1
        held = held.view_as(difference) * mask
        values = -batch.advantages * difference.exp() + self.coef * held * difference.abs()
        return values, {"policy/clip_frac": held, **ratio_metrics(difference)}


@dataclass(frozen=True)
class ClipCov(OfTheMinibatch, at_first_update=None):
    """PPO's clip, and no gradient for a random `fraction` of actions with low_cov < covariance < high_cov.

    Clip-Cov (arXiv:2505.22617). Actions the clip already stopped are not drawn; at least one of the others is, if any
    is in the range. The draw is seeded, so the same minibatch always gives the same loss.
    """

    fraction: Share = 2e-4
    """Share of the minibatch's actions that get no gradient, drawn among the candidates."""
    low_cov: Number = 1.0
    """Covariance, in advantage times nats, above which an action is a candidate."""
    high_cov: Number = 5.0
    """Covariance up to which it is one."""
    low: Annotated[float, Range(0, 1)] = 0.2
    """PPO's clip: the ratio counts as at least 1 - low."""
    high: NonNegative = 0.2
    """PPO's clip: the ratio counts as at most 1 + high."""
    seed: Seed = 0
    """Seed of the draw."""

    @property
    def clip_range(self) -> ClipRange:
        return ClipRange(self.low, self.high)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        values, metrics = Clip(self.low, self.high)(readings, batch)
        clipped = metrics["policy/clip_frac"] > 0
        cov = covariance(readings, batch)
        candidates = (mask & ~clipped & (cov > self.low_cov) & (cov < self.high_cov)).flatten().nonzero()[:, 0]
        order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(self.seed)).to(candidates.device)
        chosen = candidates[order[: max(1, int(self.fraction * int(mask.sum())))]]
        held = torch.zeros_like(cov).flatten()
        held[chosen] = 1
        held = held.view_as(cov)
        return values * (1 - held), {**metrics, "policy/clip_frac": clipped + held}


def covariance(readings: Mapping[Reading, Tensor], batch: Batch) -> Float[Tensor, "n t"]:
    """(A - mean A) (log policy - its mean), means over the actions of the minibatch; detached."""
    mask, logprobs = batch.rollouts.action_mask, readings[LOGPROBS].detach()
    return (batch.advantages - masked_mean(batch.advantages, mask)) * (logprobs - masked_mean(logprobs, mask))
