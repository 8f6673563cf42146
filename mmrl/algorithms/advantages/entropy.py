"""Advantages that look at how uncertain the policy was."""

from dataclasses import dataclass, field

import torch

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.statistics import lengths
from mmrl.core.ranges import NonNegative, Positive, check_ranges
from mmrl.core.readings import OLD_ENTROPY, OLD_LOGPROBS
from mmrl.core.tensors import masked_mean
from mmrl.core.types import Credit, Reading, Rollouts, Scores


@dataclass(frozen=True)
class OnTop:
    """An advantage A that is computed first, and what is made of it."""

    inner: GroupNorm = field(default_factory=GroupNorm)
    """The advantage A."""

    __post_init__ = check_ranges

    @property
    def min_group_size(self) -> int:
        return self.inner.min_group_size


@dataclass(frozen=True)
class EntropyControl(OnTop):
    """A - penalty H, and A = 0 where H > most; H the mean entropy of a rollout when it was sampled (GTPO, arXiv:2508.03772).

    The paper removes answers only for models whose entropy begins below ln 2; here nothing is removed in a step whose mean
    entropy is above `most`.
    """

    penalty: NonNegative = 0.1
    """Per nat of mean entropy."""
    most: Positive = 0.7
    """In nats per action, about ln 2."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (OLD_ENTROPY,)

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit = self.inner(scores, rollouts)
        entropy = masked_mean(rollouts.recorded[OLD_ENTROPY].to(credit.values), rollouts.action_mask, dim=1)[:, None]
        removed = (entropy > self.most) & (entropy.mean() <= self.most)
        values = torch.where(removed, 0.0, credit.values - self.penalty * entropy)
        return Credit(torch.where(rollouts.action_mask & credit.keep[:, None], values, 0.0), credit.keep, credit.actions)


@dataclass(frozen=True)
class NoveltyBonus(OnTop):
    """A + min(novelty (1 - eta), most A) where A > 0 and below-average likely, eta = e^(mean log p - group mean) (XRPO).

    XRPO, arXiv:2510.06672, its sharpening: right answers that the policy found unlikely count more, by `most` of their advantage.
    """

    novelty: NonNegative = 2.5
    """Bonus per unit of 1 - eta."""
    most: NonNegative = 0.5
    """In shares of A."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (OLD_LOGPROBS,)

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit = self.inner(scores, rollouts)
        mean = masked_mean(rollouts.recorded[OLD_LOGPROBS].to(credit.values), rollouts.action_mask, dim=1)
        eta = torch.ones_like(mean)
        for one in sorted(set(map(int, rollouts.group_ids))):
            rows = (rollouts.group_ids == one) & (lengths(rollouts, mean) > 0)
            eta[rows] = (mean[rows] - mean[rows].mean()).exp()
        gain = (self.novelty * (1 - eta)).clamp(min=0)[:, None]
        bonus = torch.minimum(gain, self.most * credit.values.clamp(min=0))
        return Credit(credit.values + bonus, credit.keep, credit.actions)
