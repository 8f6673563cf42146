"""Credit for groups that hold a given answer next to the policy's own samples."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from mmrl.algorithms.statistics import by_group, is_rounding, moments, to_credit, totals_and_keep
from mmrl.core.hooks import AdvantageHooks
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import NonNegative, Number, Range


@dataclass(frozen=True)
class AnchoredNorm(AdvantageHooks):
    """A = (r - mean) / (deviation + eps) of the policy's own samples; an injected one gets anchor * max A (TempSamp-R1).

    arXiv:2509.18056, its "advantage anchoring": the ground truth does not push the policy's own rewards below their mean.
    """

    anchor: Number = 1.2
    """Advantage of the injected sample, as a multiple of the largest among the policy's own samples."""
    ddof: Annotated[int, Range(0, 1)] = 1
    eps: NonNegative = 1e-6
    zero_below: NonNegative = 1e-6
    """As in GroupNorm: own samples that differ only by rounding get 0."""

    min_group_size = 3

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        given = torch.tensor([sample.role == "injected" for _, sample in rollouts.samples()], dtype=torch.bool)
        return to_credit(by_group(rollouts, keep, totals, self._normalize, given), keep, rollouts, scores)

    def _normalize(self, rewards: Tensor, given: Tensor) -> Tensor:
        own = rewards[~given]
        values = torch.zeros_like(rewards)
        if len(own) > 1 and bool((own != own[0]).any()):
            mean, deviation = moments(own, self.ddof)
            if not is_rounding(own, deviation, self.zero_below):
                values = (rewards - mean) / (deviation + self.eps)
                values[given] = self.anchor * values[~given].max()
        return values
