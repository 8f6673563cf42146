"""Advantages that grow with how far a sample is above its group."""

from dataclasses import dataclass

from mmrl.algorithms.advantages.entropy import OnTop
from mmrl.algorithms.advantages.statistics import by_group, totals_and_keep
from mmrl.core.ranges import NonNegative
from mmrl.core.types import Credit, Rollouts, Scores


@dataclass(frozen=True)
class Bold(OnTop):
    """A <- (1 + gain (r - group mean)) A (HART's AP-GRPO, eq. 6).

    No report with an id was found (it extends arXiv:2402.03300). `gain` was not established: 0.5 is ours. The mean over a group
    is no longer 0. The same as weighing the surrogate, for none of its bounds depends on A's size.
    """

    gain: NonNegative = 0.5
    """Per unit of reward."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        lead = by_group(rollouts, keep, totals, lambda rewards: rewards - rewards.mean())
        credit = self.inner(scores, rollouts)
        weight = (1 + self.gain * lead).to(credit.values)[:, None]
        return Credit(credit.values * weight, credit.keep, credit.actions)
