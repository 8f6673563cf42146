"""Combining several rewards other than by adding them: gates and minima, as shaping before the advantage.

For plain sums see Scores.total; the advantage Decoupled adds rewards after normalizing each within its group.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from mmrl.algorithms.statistics import PlainShaping, place_of, with_column
from mmrl.core.readings import OLD_LOGPROBS
from mmrl.core.types import Reading, Rollouts, Scores, Status
from mmrl.runtime.ranges import Number, Range


@dataclass(frozen=True)
class Gate(PlainShaping):
    """r_k' = r_k g, or r_k [g >= at_least]: what a reward is worth only where another one allows it (accuracy gated by format).

    Every gated reward gets a column `<name>_gated`, which takes over its weight; the gate counts by itself only through its own
    weight. Where the gate does not apply nothing is gated; where it failed, the gated rewards fail too.
    """

    by: str = "format"
    """The reward that gates; give it weight 0 to gate only."""
    rewards: tuple[str, ...] = ()
    """The gated ones; empty: all others of non-zero weight."""
    at_least: Number | None = None
    """None: multiply; else all or nothing."""

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        """Raises ValueError for a name that no reward has."""
        gate = place_of(scores, self.by, "Gate.by")
        others = [k for k in range(len(scores.names)) if k != gate and scores.weights[k] != 0]
        gated = [place_of(scores, name, "Gate.rewards") for name in self.rewards] or others
        factor, status = scores.values[:, gate], scores.status[:, gate]
        if self.at_least is not None:
            factor = (factor >= self.at_least).to(factor)
        for k in gated:
            value = torch.where(status == Status.OK, scores.values[:, k] * factor, scores.values[:, k])
            joint = torch.where(status == Status.FAILED, int(Status.FAILED), scores.status[:, k])
            scores = with_column(scores, self, f"{scores.names[k]}_gated", value, scores.weights[k], joint, [k])
        return scores


@dataclass(frozen=True)
class Minimum(PlainShaping):
    """r = min_k r_k over the rewards that apply: only the weakest side of an answer counts. The rewards must have the same scale.

    A column `minimum` with weight `weight` is added, and the rewards it is made of keep none. It failed where one of them did.
    """

    rewards: tuple[str, ...] = ()
    """Empty: all of non-zero weight."""
    weight: Number = 1.0
    """Weight of the column `minimum` in the total."""

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        """Raises ValueError for a name that no reward has."""
        weighted = [k for k in range(len(scores.names)) if scores.weights[k] != 0]
        places = [place_of(scores, name, "Minimum.rewards") for name in self.rewards] or weighted
        status = scores.status[:, places]
        values = torch.where(status == Status.OK, scores.values[:, places], torch.inf).amin(1)
        joint = torch.where((status == Status.NA).all(1), int(Status.NA), int(Status.OK))
        joint = torch.where((status == Status.FAILED).any(1), int(Status.FAILED), joint)
        return with_column(scores, self, "minimum", values, self.weight, joint, places)


@dataclass(frozen=True)
class Unlikeliness(PlainShaping):
    """r_i' = r_i (1 - penalty rank_i / G), rank 0 = the least likely of its group (arXiv:2506.02355).

    Answers that the policy finds easily earn less than those it hardly finds. Likely means the mean old log-probability of a
    rollout's actions, compared among the rows of its group that are at hand; of ties the first counts as less likely.
    Rewards of 0 stay 0.
    """

    penalty: Annotated[float, Range(0, 1)] = 0.25
    """Share of the reward that is lost at rank G; the likeliest sample has rank G - 1."""

    reads = (OLD_LOGPROBS,)

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        mask = rollouts.action_mask
        logprobs = frozen[OLD_LOGPROBS]
        likely = torch.where(mask, logprobs, 0.0).sum(1) / mask.sum(1).clamp(min=1)
        factor = torch.ones_like(scores.values[:, 0])
        for group in rollouts.groups:
            rows = rollouts.group_ids == group.id
            rank = likely[rows].argsort(stable=True).argsort(stable=True)
            factor[rows] = 1 - self.penalty * rank.to(factor) / max(int(rows.sum()), 1)
        weighted = scores.weights != 0
        return replace(scores, values=torch.where(weighted, scores.values * factor[:, None], scores.values))
