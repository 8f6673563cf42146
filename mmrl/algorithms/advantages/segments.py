"""Advantages of the segments of an answer: how much the value of its beginning rises over each of them."""

import math
from dataclasses import dataclass

import torch

from mmrl.algorithms.advantages.statistics import totals_and_keep
from mmrl.algorithms.segments import SURE, probabilities_of, segment_advantages
from mmrl.core.ranges import Share, check_ranges
from mmrl.core.types import Credit, Rollouts, Scores


@dataclass(frozen=True)
class SegmentGains:
    """A = V(end of the action's segment) - V(its beginning), the reward at the last end; near-certain actions do not train (SPO).

    The chain form of arXiv:2505.23564, with the values that the planner SegmentValues finds. Actions before the first cut have
    an advantage of 0. Values are of rewards before shaping, the end of an answer is after it.
    """

    sure: Share = SURE
    """The probability from which an action no longer counts as a decision."""
    mask: bool = True
    """Sure actions leave every count. False: they train with their segment's advantage."""
    min_group_size = 1

    __post_init__ = check_ranges

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError if no planner has valued the beginnings of answers."""
        totals, keep = totals_and_keep(scores)
        sure = self.sure if self.mask else math.inf
        values = torch.zeros(rollouts.action_mask.shape, dtype=torch.float64)
        trains = torch.zeros_like(rollouts.action_mask)
        found = False
        for i, ((_, sample), row) in enumerate(zip(rollouts.samples(), probabilities_of(rollouts), strict=True)):
            places = rollouts.action_mask[i].nonzero()[:, 0]
            trains[i, places] = torch.tensor([probability < sure for probability in row], dtype=torch.bool)
            found |= bool(sample.values)
            if bool(keep[i]):
                cuts, worth = [kept - 1 for kept, _ in sample.values], [value for _, value in sample.values]
                gains = segment_advantages(row, cuts, worth, float(totals[i]), sure)
                values[i, places] = torch.tensor(gains, dtype=torch.float64)
        if not found and bool(trains[keep].any()):
            raise ValueError(
                "SegmentGains finds no values inside of answers: set algorithm.planner.kind = 'SegmentValues', which samples the "
                "continuations that they are made of"
            )
        return Credit(values.to(scores.values.dtype), keep, trains)
