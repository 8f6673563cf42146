"""Plain twins: what a method is compared with when the whole of it is its idea."""

from dataclasses import dataclass, replace

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.surrogates import Reinforce
from mmrl.algorithms.statistics import to_credit, totals_and_keep
from mmrl.core.types import Credit, Rollouts, Scores


@dataclass(frozen=True)
class Raw:
    """A = r: nothing is compared with anything."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        return to_credit(totals, keep, rollouts, scores)


def uncompared(algorithm: Algorithm) -> Algorithm:
    """The same with plain rewards for advantages."""
    return replace(algorithm, advantage=Raw())


def unclipped(algorithm: Algorithm) -> Algorithm:
    """The same number of updates with REINFORCE as the only term: nothing looks at how far the weights have moved."""
    return replace(algorithm, objective=((1.0, Reinforce()),))
