"""Rewards standardized over the tokens of a group instead of its rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.algorithms.advantages.statistics import by_group, lengths, to_credit, totals_and_keep
from mmrl.core.ranges import NonNegative, Positive, check_ranges
from mmrl.core.types import Credit, Rollouts, Scores


@dataclass(frozen=True)
class TokenAverage:
    """A = (r - mean) / (deviation + eps) over all actions of the group, so that long answers count as often as they act (HAPO).

    Code starriver030515/HAPO. Biased deviation. A group with an advantage of `most` or more takes rows in place of actions.
    """

    eps: NonNegative = 1e-6
    """Added to the deviation."""
    most: Positive = 5.0
    """An advantage that large shows that a few actions stand against all others."""
    min_group_size = 2

    __post_init__ = check_ranges

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        rows = torch.stack([totals, lengths(rollouts, totals)], dim=1)
        return to_credit(by_group(rollouts, keep, rows, self._standardize)[:, 0], keep, rollouts, scores)

    def _standardize(self, rows: Tensor) -> Tensor:
        rewards, counts = rows.unbind(1)
        values = self.compare(rewards, counts)
        if bool((values.abs() >= self.most).any()):
            values = self.compare(rewards, torch.ones_like(counts))
        return torch.stack([values, counts], dim=1)

    def compare(self, rewards: Tensor, counts: Tensor) -> Tensor:
        """The rewards of a group (g,), each counted so often, less their mean and over their deviation."""
        if bool((rewards == rewards[0]).all()) or not bool(counts.any()):
            return torch.zeros_like(rewards)
        mean = (rewards * counts).sum() / counts.sum()
        deviation = ((rewards - mean) ** 2 * counts).sum() / counts.sum()
        return (rewards - mean) / (deviation.sqrt() + self.eps)
