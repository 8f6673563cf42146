"""Every reward normalized on its own before they are added: GDPO."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch

from mmrl.algorithms.advantages.statistics import (
    EpsMode,
    Singleton,
    by_group,
    divisor,
    is_rounding,
    largest_deviation,
    lengths,
    moments,
    standardize,
    to_credit,
    totals_and_keep,
)
from mmrl.core.types import Credit, Rollouts, Scores, Status
from mmrl.runtime.ranges import BelowOne, NonNegative, Range, check_ranges


@dataclass(frozen=True)
class Decoupled:
    """A = whiten(sum_k w_k (r_k - group mean_k) / (group deviation_k + eps)) (GDPO, arXiv:2601.05242).

    No reward can drown another by its variance, and (1, 0) differs from (0, 1). A reward that does not apply to a
    sample stays out of that column's statistics and of the sample's sum. The defaults are TRL 1.16's
    `normalize_then_sum`; verl: eps=1e-6, whiten="action", whiten_eps=1e-8, whiten_mode="variance", singleton="reward".
    Not implemented: conditioning one reward on another.
    """

    ddof: Annotated[int, Range(0, 1)] = 1
    eps: NonNegative = 1e-4
    eps_mode: EpsMode = "add"
    scale: Literal["group", "max_group", "batch"] = "group"
    """Divide a reward by its deviation in the group, in the step's most spread group (LongCat-Video, arXiv:2510.22200), or over
    the whole step."""
    zero_below: NonNegative = 1e-6
    """A group whose deviation of a reward is smaller, in units of its largest value where that is above 1, gets 0 for that
    reward: otherwise two values one rounding error apart would count as much as two that really differ. 0 is parity with code
    that has no threshold."""
    singleton: Singleton = "zero"
    trimmed: BelowOne = 0.0
    """Mean and deviation leave out this share of a group's rewards, the lowest (MixGRPO's trimmed_ratio)."""
    whiten: Literal["rollout", "action", "none"] = "rollout"
    """Standardize the sum over the step, with every rollout counting once or once per action, or do not standardize it."""
    whiten_eps: NonNegative = 1e-4
    """Keeps the spread of the sum away from 0, in its units; `whiten_mode` says how."""
    whiten_mode: EpsMode = "add"
    """Where whiten_eps goes: deviation + eps, max(deviation, eps), or sqrt(deviation^2 + eps)."""
    min_group_size = 2

    __post_init__ = check_ranges

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        values = torch.zeros_like(totals)
        for k in range(len(scores.names)):
            if scores.weights[k] == 0:
                continue
            answered = keep & (scores.status[:, k] == Status.OK)
            column = scores.values[:, k].double()
            by = largest_deviation(rollouts, answered, column, self.ddof) if self.scale == "max_group" else None
            by = moments(column[answered], self.ddof)[1] if self.scale == "batch" else by
            own = by_group(rollouts, answered, column, partial(self._normalize, by=by))
            values = values + scores.weights[k].double() * own
        if self.whiten != "none":
            weights = lengths(rollouts, totals)[keep] if self.whiten == "action" else None
            values[keep] = standardize(values[keep], self.ddof, self.whiten_eps, self.whiten_mode, weights)
        return to_credit(values, keep, rollouts, scores)

    def _normalize(self, rewards: torch.Tensor, by: torch.Tensor | None) -> torch.Tensor:
        if len(rewards) == 1 and self.singleton == "reward":
            return rewards
        upper = rewards.sort().values[int(self.trimmed * len(rewards)) :] if self.trimmed else rewards
        mean, deviation = moments(upper, self.ddof)
        if bool((upper == upper[0]).all()) or is_rounding(upper, deviation, self.zero_below):
            return torch.zeros_like(rewards)
        return (rewards - mean) / divisor(deviation if by is None else by, self.eps, self.eps_mode)
