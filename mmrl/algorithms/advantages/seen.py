"""Statistics of all samples that were drawn, training on a few of them."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from mmrl.algorithms.advantages.statistics import by_group, to_credit, totals_and_keep
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import NonNegative, Number, Range, check_ranges


@dataclass(frozen=True)
class Downsampled:
    """A = (1[right] - p) / (deviation + eps), p and the unbiased deviation over all samples of the group; `keep` rows train.

    Reinforce-Ada (arXiv:2510.04996): half of the kept rows are right and half wrong, filled from the other kind; the earliest
    of each kind are taken. The others leave every count. Kept rows no longer have mean 0, and must not be normalized again.
    """

    keep: Annotated[int, Range(2, 2**20)] = 4
    """Rows of a group that train."""
    scale: bool = False
    """Divide by the deviation; the authors' script does not."""
    success_at: Number = 0.7
    """Total reward above which a sample is right."""
    eps: NonNegative = 1e-6
    """Added to the deviation."""

    __post_init__ = check_ranges
    min_group_size = 2

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        right = (totals > self.success_at).to(totals)
        values = by_group(rollouts, keep, right, self.compare)
        chosen = by_group(rollouts, keep, right, self.choose) > 0
        return to_credit(values, keep & chosen, rollouts, scores)

    def compare(self, right: Tensor) -> Tensor:
        """The advantages of the samples of a group (g,); 1 marks right ones."""
        return self.against(right, float(right.mean()), len(right))

    def against(self, right: Tensor, rate: float, count: int) -> Tensor:
        """The same, against a group of `count` samples of which a share of `rate` was right."""
        centred = right - rate
        if not self.scale or count < 2:
            return centred
        return centred / ((rate * (1 - rate) * count / (count - 1)) ** 0.5 + self.eps)

    def choose(self, right: Tensor) -> Tensor:
        """1 for the samples that train."""
        good, bad = (int((right == kind).sum()) for kind in (1, 0))
        wanted = min(self.keep, len(right))
        num_good = min(good, max(wanted // 2, wanted - bad))
        chosen = torch.zeros_like(right)
        for kind, number in ((1, num_good), (0, wanted - num_good)):
            chosen[(right == kind).nonzero()[:number, 0]] = 1
        return chosen
