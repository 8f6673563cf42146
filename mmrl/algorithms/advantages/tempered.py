"""The good ones of the rows that were sampled at another temperature, all alike."""

from dataclasses import dataclass

import torch

from mmrl.algorithms.advantages.entropy import OnTop
from mmrl.core.ranges import Count, NonNegative
from mmrl.core.types import Credit, Rollouts, Scores


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
