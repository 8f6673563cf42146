"""Advantages that modify another one, which is computed first."""

from dataclasses import dataclass, field

import torch

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.statistics import by_group, totals_and_keep
from mmrl.core.hooks import PartHooks
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import Count, NonNegative


@dataclass(frozen=True)
class OnTop(PartHooks):
    """The base of advantages that compute an inner A first and modify it."""

    inner: GroupNorm = field(default_factory=GroupNorm)
    """The advantage A."""

    @property
    def min_group_size(self) -> int:
        return self.inner.min_group_size


@dataclass(frozen=True)
class Bold(OnTop):
    """A <- (1 + gain (r - group mean)) A (HART's AP-GRPO, eq. 6).

    HART, arXiv:2602.23615. The mean over a group is no longer 0. This is the same as weighting the surrogate, because none of its
    bounds depends on A's size.
    """

    gain: NonNegative = 0.6
    """Per unit of reward; 0.6 is the paper's."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        lead = by_group(rollouts, keep, totals, lambda rewards: rewards - rewards.mean())
        credit = self.inner(scores, rollouts)
        weight = (1 + self.gain * lead).to(credit.values)[:, None]
        return Credit(credit.values * weight, credit.keep, credit.actions)


@dataclass(frozen=True)
class GoodTempered(OnTop):
    """A = 1 for tempered rows with A > above, at most `most` of a step; the other tempered rows are dropped (AEPO, see Tempered).

    Rows at the run's temperature keep the inner advantage. The paper's code replaces the first rows of the batch with these; here
    they are added.
    """

    above: NonNegative = 0.05
    """What a tempered row's advantage within its own group must exceed."""
    most: Count = 60
    """How many tempered rows train, earliest first; the paper's code halves it above the target."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit, mask = self.inner(scores, rollouts), rollouts.action_mask
        heated = torch.tensor([sample.temperature is not None for _, sample in rollouts.samples()], dtype=torch.bool)
        mean = torch.where(mask, credit.values, 0.0).sum(1) / mask.sum(1).clamp(min=1)
        good = heated & credit.keep & (mean > self.above)
        good = good & (good.long().cumsum(0) <= self.most)
        values = torch.where(good[:, None], mask.to(credit.values), credit.values)
        return Credit(values, credit.keep & (good | ~heated), credit.actions)
