"""Lets groups of wrong answers teach by counting an imagined perfect sample among them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.algorithms.advantages.statistics import by_group, moments, to_credit, totals_and_keep
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import Count, NonNegative, Number, check_ranges


@dataclass(frozen=True)
class VirtualBest:
    """A = (r - mean') / (deviation' + eps), both over the group and `count` virtual samples of reward `best` (NGRPO).

    NGRPO, arXiv:2509.18851: where all samples are wrong, all get the same negative advantage, -1/3 for eight of them. Groups in
    which every reward is `best` get 0.
    """

    best: Number = 1.0
    """The total reward of a perfect sample."""
    count: Count = 1
    """Virtual samples per group."""
    eps: NonNegative = 1e-6
    """Added to the deviation, in units of the reward."""

    __post_init__ = check_ranges
    min_group_size = 1

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError when a total is above `best`."""
        totals, keep = totals_and_keep(scores)
        most = float(totals[keep].max()) if bool(keep.any()) else self.best
        if most > self.best + 1e-6:
            raise ValueError(
                f"a total reward is {most:g}, above VirtualBest.best = {self.best:g}: set algorithm.advantage.best to the "
                "largest total that the rewards of this run can give"
            )
        return to_credit(by_group(rollouts, keep, totals, self._normalize), keep, rollouts, scores)

    def _normalize(self, rewards: Tensor) -> Tensor:
        completed = torch.cat([rewards, rewards.new_full((self.count,), self.best)])
        if bool((completed == completed[0]).all()):
            return torch.zeros_like(rewards)
        mean, deviation = moments(completed, ddof=1)
        return (rewards - mean) / (deviation + self.eps)
