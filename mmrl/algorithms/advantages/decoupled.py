"""Every reward normalized on its own: before they are added (GDPO), or for a clip and its sound apart (OmniNFT)."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.statistics import (
    Compared,
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
from mmrl.runtime.ranges import BelowOne, NonNegative, Range


@dataclass(frozen=True)
class Decoupled(Compared):
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


@dataclass(frozen=True)
class PerModality(Compared):
    """A_clip = sum_k w_k a_k of the clip's rewards and those of both, A_sound likewise; a = (r - mean) / (deviation + eps).

    OmniNFT, arXiv:2605.12480; zghhui/OmniNFT@c03c3f2. Take the term NegativeAware with parts = true. A modality without a reward
    has the advantage 0; in the code it takes the average of all rewards there, and wherever its advantages add up to exactly 0.
    """

    of_clip: tuple[str, ...] = ()
    """Names of rewards that look at the clip alone."""
    of_sound: tuple[str, ...] = ()
    """Names of rewards that listen to the sound alone. All others count for both."""
    each: Decoupled = field(default_factory=lambda: Decoupled(scale="batch", ddof=0, whiten="none"))
    """How every reward is normalized."""

    def __post_init__(self) -> None:
        if both := set(self.of_clip) & set(self.of_sound):
            raise ValueError(
                f"PerModality: {sorted(both)[0]!r} is in of_clip and of_sound: leave it out of both, and it counts so"
            )

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """The clip's. Raises ValueError for a name that no reward has."""
        self.check_names(scores.names)
        clip = self.each(without(scores, self.of_sound), rollouts)
        return replace(clip, keep=clip.keep & totals_and_keep(scores)[1])

    def of_the_sound(self, scores: Scores, rollouts: Rollouts) -> Float[Tensor, "n t"]:
        """The sound's."""
        return self.each(without(scores, self.of_clip), rollouts).values

    def check_names(self, known: Collection[str]) -> None:
        """Raises ValueError for a name that no reward has, or where all rewards are for both."""
        named = {"of_clip": self.of_clip, "of_sound": self.of_sound}
        for key, name in ((key, name) for key, names in named.items() for name in names):
            if name not in known:
                raise ValueError(
                    f"algorithm.advantage.{key} names the reward {name!r}, and the run has {', '.join(known)}: name one of these"
                )
        if not any(named.values()):
            raise ValueError(
                "algorithm.advantage PerModality tells clip and sound apart, and names no reward of either: set "
                f"algorithm.advantage.of_clip and of_sound to some of {', '.join(known)}"
            )


def without(scores: Scores, names: Collection[str]) -> Scores:
    """The scores with weight 0 for these rewards."""
    left_out = torch.tensor([name in names for name in scores.names], device=scores.weights.device)
    return replace(scores, weights=scores.weights.masked_fill(left_out, 0.0))
