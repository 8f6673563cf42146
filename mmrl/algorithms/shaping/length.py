"""Scores -> Scores, before advantages: bonuses and penalties that no single reward can give."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from mmrl.algorithms.statistics import PlainShaping, with_column
from mmrl.core.types import Reading, Rollouts, Scores
from mmrl.runtime.ranges import Count, NonNegative


@dataclass(frozen=True)
class OverlongPenalty(PlainShaping):
    """Adds a reward `overlong`: 0 up to length - buffer actions, then linear to -1 at length (DAPO, arXiv:2503.14476)."""

    length: Count | None = None
    """In actions. None: the run fills in its max_new_tokens."""
    buffer: Count | None = None
    """In actions. None: a fifth of the length, as in the paper (4096 of 20480)."""
    weight: NonNegative = 1.0
    """Weight of the reward `overlong` in the total."""

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        """Raises ValueError when `length` was never filled in, or a reward is called `overlong` already."""
        if self.length is None:
            raise ValueError(
                "OverlongPenalty.length is not set, and nothing filled in the run's max_new_tokens: "
                "give the penalty a length, OverlongPenalty(length=1024)"
            )
        buffer = max(self.length // 5, 1) if self.buffer is None else self.buffer
        num_actions = rollouts.action_mask.sum(1).to(scores.values)
        penalty = ((self.length - buffer - num_actions) / buffer).clamp(-1, 0)
        return with_column(scores, self, "overlong", penalty, self.weight)
