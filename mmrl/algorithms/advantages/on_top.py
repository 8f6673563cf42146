"""Advantages made of another one, which is computed first."""

from dataclasses import dataclass, field

import torch

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.statistics import by_group, totals_and_keep
from mmrl.core.ranges import Count, NonNegative, check_ranges
from mmrl.core.types import Credit, Rollouts, Scores


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
class Bold(OnTop):
    """A <- (1 + gain (r - group mean)) A (HART's AP-GRPO, eq. 6).

    HART, arXiv:2602.23615. The mean over a group is no longer 0. The same as weighing the surrogate, for none of its bounds
    depends on A's size.
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
    """A = 1 for tempered rows with A > above, at most `most` of a step; the other tempered rows leave (AEPO, see Tempered).

    Rows at the run's temperature keep the inner advantage. The code puts these rows in place of the first of the batch; here
    they are added.
    """

    above: NonNegative = 0.05
    """What the advantage of a tempered row among its own group must exceed."""
    most: Count = 60
    """Tempered rows that train, the earliest; the code halves it above the target."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit, mask = self.inner(scores, rollouts), rollouts.action_mask
        heated = torch.tensor([sample.temperature is not None for _, sample in rollouts.samples()], dtype=torch.bool)
        mean = torch.where(mask, credit.values, 0.0).sum(1) / mask.sum(1).clamp(min=1)
        good = heated & credit.keep & (mean > self.above)
        good = good & (good.long().cumsum(0) <= self.most)
        values = torch.where(good[:, None], mask.to(credit.values), credit.values)
        return Credit(values, credit.keep & (good | ~heated), credit.actions)
