"""Selections used in image RL: which samples of a group train at all."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.statistics import by_group, is_rounding, moments, to_credit, totals_and_keep
from mmrl.core.hooks import AdvantageHooks
from mmrl.core.ranges import Range, check_ranges
from mmrl.core.types import Credit, Rollouts, Scores


@dataclass(frozen=True)
class BestOfN:
    """Group advantages of all samples, of which the n / 2 best and n / 2 worst of every group train (DanceGRPO).

    arXiv:2505.07818. Nothing is normalized again after the choice. An odd n takes one more at the top.
    """

    n: Annotated[int, Range(2, 2**20)] = 8
    """Samples of a group that train: one half the best, the other half the worst."""
    norm: GroupNorm = field(default_factory=lambda: GroupNorm(eps=1e-8, zero_below=1e-6, clip=5.0))
    """The advantage that the chosen samples train on."""

    __post_init__ = check_ranges

    @property
    def min_group_size(self) -> int:
        return self.norm.min_group_size

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit = self.norm(scores, rollouts)
        totals = scores.total()
        chosen = by_group(rollouts, credit.keep, totals, self._choice) > 0
        return Credit(torch.where(chosen[:, None], credit.values, 0.0), chosen)

    def _choice(self, values: Tensor) -> Tensor:
        chosen = torch.zeros_like(values)
        best, worst = extremes(values, self.n)
        chosen[best] = chosen[worst] = 1
        return chosen


def extremes(values: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Indices of the ceil(n / 2) largest and the floor(n / 2) smallest of m values, each in ascending order of value."""
    order = values.argsort(stable=True)
    return order[max(0, len(order) - (n + 1) // 2) :], order[: n // 2]


@dataclass(frozen=True)
class BestWorst:
    """A = 1 for the best sample of a group and -1 for the worst, 0 for the others: labels of online DPO and SFT.

    From Flow-GRPO's code (arXiv:2505.05470). Ties go to the first; where all are equal the second sample is best and the first
    worst. Without `worst` (SFT) all that share the maximum get 1.
    """

    worst: bool = True
    """True: the worst sample gets -1. False: it gets 0 like the others, and all that share the maximum get 1."""
    min_group_size: Annotated[int, Range(2, 2**20)] = 2
    """Fewest samples of a group: a smaller algorithm.group_size is refused."""

    __post_init__ = check_ranges

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        return to_credit(by_group(rollouts, keep, totals, self._labels), keep, rollouts, scores)

    def _labels(self, rewards: Tensor) -> Tensor:
        if not self.worst:
            return (rewards == rewards.max()).to(rewards)
        labels = torch.zeros_like(rewards)
        best, worst = int(rewards.argmax()), int(rewards.argmin())
        if best == worst:
            best, worst = min(1, len(rewards) - 1), 0
        labels[worst] = -1
        labels[best] = 1
        return labels


@dataclass(frozen=True)
class BestAgainstWorst(AdvantageHooks):
    """A = 1 for the best sample of a group and -1 for its worst: one pair per group (online DPO, Flow-Factory a0b2bc5).

    Ties go to the first. All others leave every count, and so do groups whose rewards differ by rounding only: they have no
    pair, where Flow-Factory compares a sample with itself. A step without any pair trains nothing.
    """

    min_group_size = 2

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        credit = to_credit(by_group(rollouts, keep, totals, self._labels), keep, rollouts, scores)
        paired = (credit.values != 0).any(1)
        return Credit(credit.values, paired if bool(paired.any()) else credit.keep)

    def _labels(self, rewards: Tensor) -> Tensor:
        labels = torch.zeros_like(rewards)
        if not is_rounding(rewards, moments(rewards, 0)[1], 1e-6):
            labels[int(rewards.argmax())], labels[int(rewards.argmin())] = 1, -1
        return labels
