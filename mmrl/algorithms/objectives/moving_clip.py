"""Clips whose range differs from action to action, and surrogates that hold back the few actions that cost the most entropy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.objectives.surrogates import Clip, Values
from mmrl.algorithms.objectives.terms import Clips, ProportionalToAdvantage, Surrogate, actions_only, log_ratio, ratio_metrics
from mmrl.algorithms.statistics import uncertainty
from mmrl.core.readings import ENTROPY, LOGPROBS, OLD_LOGPROBS, START_LOGPROBS
from mmrl.core.types import Batch, Reading
from mmrl.runtime.ranges import NonNegative, Number, Range, Seed, Share
from mmrl.runtime.tensors import masked_mean

Actions = Float[Tensor, "n t"]


def clip_between(difference: Actions, advantages: Actions, least: Actions, most: Actions) -> Values:
    """-min(ratio A, clip(ratio, least, most) A) with bounds per action, and its metrics."""
    ratio = difference.exp()
    plain, held = -advantages * ratio, -advantages * torch.minimum(torch.maximum(ratio, least), most)
    return torch.maximum(plain, held), {"policy/clip_frac": (held > plain).to(ratio), **ratio_metrics(difference)}


@dataclass(frozen=True)
class MovingClip(Clips, ProportionalToAdvantage, reads=(LOGPROBS, OLD_LOGPROBS, START_LOGPROBS)):
    """-min(ratio A, clip(ratio, c - low, c + high) A), c = policy at the step's start / old (ReMix, arXiv:2507.06892).

    For rows sampled in this step c is 1 and this is PPO's clip; replayed rows may move just as far, but from where the step found
    them. The paper's range was not found: 0.2.
    """

    low: Share = 0.2
    """The ratio counts as at least c - low."""
    high: NonNegative = 0.2
    """The ratio counts as at most c + high."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        start = {LOGPROBS: readings[START_LOGPROBS], OLD_LOGPROBS: readings[OLD_LOGPROBS]}
        centre = log_ratio(start, mask).exp()
        return clip_between(log_ratio(readings, mask), batch.advantages, centre - self.low, centre + self.high)


@dataclass(frozen=True)
class EntropyClip(Clips, ProportionalToAdvantage, reads=(LOGPROBS, OLD_LOGPROBS, ENTROPY), scope="batch", at_first_update=None):
    """PPO's clip with high (1 + u) where u > 0 and low (1 - u) where u <= 0, A (1 + u) outside of the inner range (HAPO).

    HAPO, arXiv:2509.16591, code starriver030515/HAPO. u in [-1, 1] is the distance
    of an action's log entropy from the minibatch's quantile `pivot`. A becomes A (1 + u) where u > 0 and the ratio has left
    half of that range, and where u <= 0 and it has not. `sign = "code"`: the released code makes u positive
    everywhere, so that its rule for certain actions never acts. Its temperatures are the planner ByDoubt.
    """

    low: Share = 0.2
    """The ratio counts as at least 1 - low, or less where the policy is certain."""
    high: NonNegative = 0.2
    """The ratio counts as at most 1 + high, or more where the policy is uncertain."""
    pivot: Annotated[float, Range(above=0, below=1)] = 0.8
    """The quantile of log entropies above which an action is uncertain."""
    widen: NonNegative = 1.0
    """How strongly the bounds follow u."""
    redistribute: NonNegative = 1.0
    """How strongly advantages follow u."""
    dual: Annotated[float, Range(above=1)] | None = 10.0
    """For A < 0 the value is at most -dual A."""
    sign: Literal["paper", "code"] = "paper"
    """code: u as the released code computes it."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        u = uncertainty(readings[ENTROPY], mask, self.pivot, self.sign).size
        difference = log_ratio(readings, mask)
        advantages = self.redistribution(batch.advantages, difference.detach().exp(), u)
        low, high = self.bounds(u)
        values, metrics = clip_between(difference, advantages, 1 - low, 1 + high)
        if self.dual is not None:
            values = torch.where(advantages < 0, torch.minimum(values, -self.dual * advantages), values)
        return values, {**metrics, "policy/entropy": actions_only(readings[ENTROPY].detach(), mask)}

    def bounds(self, u: Actions) -> tuple[Actions, Actions]:
        """How far below and above 1 the ratio of every action counts."""
        wide = self.widen * u
        low = torch.where(u > 0, torch.full_like(u, self.low), self.low * (1 - wide)).clamp(max=1)
        return low, torch.where(u > 0, self.high * (1 + wide), torch.full_like(u, self.high))

    def redistribution(self, advantages: Actions, ratio: Actions, u: Actions) -> Actions:
        """The advantages, times 1 + redistribute u for uncertain actions that moved and certain ones that did not."""
        low, high = self.bounds(u)
        inside = (ratio >= 1 - low / 2) & (ratio <= 1 + high / 2)
        chosen = torch.where(u > 0, ~inside, inside)
        return torch.where(chosen, advantages * (1 + self.redistribute * u), advantages)


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
class ClipCov(OfTheMinibatch, Clips, at_first_update=None):
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
