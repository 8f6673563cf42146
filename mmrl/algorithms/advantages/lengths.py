"""Groups weighted by whether thinking longer paid off."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from mmrl.algorithms.statistics import by_group, lengths, place_of, standardize, to_credit, totals_and_keep, values_at
from mmrl.core.hooks import AdvantageHooks
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import Count, NonNegative, Number, PositiveShare


@dataclass(frozen=True)
class WhereLengthPays(AdvantageHooks):
    """A = w (r - mean) / (deviation + eps); w = 1 where the longest right answer is longer than the mean wrong one, else `less`.

    ADORA (its report has no arXiv id that could be found). Wrong answers of `cap` actions or more do not count. The two official
    codes differ where one side is empty. `empty = "text"`: no right answer gives `less`, no wrong one 1. `empty = "vision"`: no
    right answer gives 1, no wrong one `less`.
    """

    less: PositiveShare = 0.1
    """Weight of a group where length did not pay."""
    cap: Count = 4094
    """Number of actions from which a wrong answer counts as cut off: 4054 in the text code, 4094 in the other."""
    correct: str = ""
    """The reward that decides what is right; empty: the total."""
    above: Number = 0.5
    """An answer is right where that reward is above it."""
    empty: Literal["text", "vision"] = "vision"
    """Which of the two codes to follow for groups without a right or without a wrong answer."""
    eps: NonNegative = 1e-6

    min_group_size = 2

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError when no reward has the name `correct`."""
        totals, keep = totals_and_keep(scores)
        beside = self._right(scores, totals), lengths(rollouts, totals)
        return to_credit(by_group(rollouts, keep, totals, self._weigh, *beside), keep, rollouts, scores)

    def _right(self, scores: Scores, totals: Tensor) -> Tensor:
        if not self.correct:
            return totals > self.above
        return values_at(scores, place_of(scores, self.correct, "algorithm.advantage.correct")) > self.above

    def _weigh(self, rewards: Tensor, right: Tensor, length: Tensor) -> Tensor:
        return standardize(rewards, ddof=1, eps=self.eps) * self.weight(right, length)

    def weight(self, right: Tensor, length: Tensor) -> float:
        """w of one group from which of its samples are right (g,) and their numbers of actions (g,)."""
        good, bad = length[right], length[~right & (length < self.cap)]
        if not len(good):
            return self.less if self.empty == "text" else 1.0
        if not len(bad):
            return 1.0 if self.empty == "text" else self.less
        return 1.0 if float(good.max()) > float(bad.mean()) else self.less
