"""Right and wrong answers weighted differently, by how well the step went."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.algorithms.statistics import by_group, refuse_unbounded, to_credit, totals_and_keep
from mmrl.core.hooks import AdvantageHooks
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import PositiveShare


@dataclass(frozen=True)
class Asymmetric(AdvantageHooks):
    """A = z (w / (2 sqrt p) + (1 - w) / (2 sqrt(1 - p))), times min(1, w / knee) where A > 0; w the step's mean reward (A-GRAE).

    z = (r - p) / biased deviation, p the group's success rate; groups of only right or only wrong answers get 0. Early in
    training, when w is small, right answers are held back and hard prompts count less. arXiv:2602.05548, equations 11 to 13.
    """

    knee: PositiveShare = 0.5
    """Mean reward of the step from which right answers count in full: 1 for text, 0.5 for pictures in the paper."""

    min_group_size = 2

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError when a total reward lies outside [0, 1]."""
        totals, keep = totals_and_keep(scores)
        kept = totals[keep]
        refuse_unbounded(kept, "Asymmetric")
        success = float(kept.mean()) if len(kept) else 0.0
        values = by_group(rollouts, keep, totals, lambda r: self._weigh(r, success))
        held = min(1.0, success / self.knee)
        return to_credit(torch.where(values > 0, held * values, values), keep, rollouts, scores)

    def _weigh(self, rewards: Tensor, success: float) -> Tensor:
        rate, deviation = float(rewards.mean()), rewards.std(correction=0)
        if bool((rewards == rewards[0]).all()) or not 0 < rate < 1:
            return torch.zeros_like(rewards)
        weight = success / 2 / rate**0.5 + (1 - success) / 2 / (1 - rate) ** 0.5
        return (rewards - rate) / deviation * weight
