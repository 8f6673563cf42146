"""Two advantages of a sample that is a clip and its sound: each from the rewards that look at it."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.advantages.decoupled import Decoupled
from mmrl.algorithms.advantages.statistics import totals_and_keep
from mmrl.core.types import Credit, Rollouts, Scores


@dataclass(frozen=True)
class PerModality:
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
    min_group_size = 2

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
