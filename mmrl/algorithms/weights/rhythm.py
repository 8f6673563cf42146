"""Weights by the rhythm of attention: tokens where a completion plans, and those that it is anchored at, count more."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.algorithms.weights.aggregate import PlainWeight
from mmrl.core.readings import ATTENTION_DISTANCE, ATTENTION_INFLUENCE
from mmrl.core.types import Batch, Counts
from mmrl.runtime.ranges import Count, Factor, Share

Kind = Literal["local", "global", "coupled"]


def steps_of(values: Float[Tensor, " t"]) -> Float[Tensor, " t"]:
    """|x_t - x_(t+1)|; 0 for the last."""
    return torch.cat([(values[:-1] - values[1:]).abs(), values.new_zeros(1)])


def largest(values: Float[Tensor, " t"], share: float) -> Bool[Tensor, " t"]:
    """True at the ceil(share t) largest values; ties go to the first."""
    chosen = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    chosen[values.argsort(descending=True, stable=True)[: math.ceil(share * len(values))]] = True
    return chosen


def median(values: Float[Tensor, " t"]) -> Tensor:
    """The middle value, the mean of two where their number is even."""
    return values.quantile(0.5)


@dataclass(frozen=True)
class Rhythm:
    """How far back every token looks, and how much later tokens look at it."""

    distance: Float[Tensor, " t"]
    influence: Float[Tensor, " t"]

    def factors(self, kind: Kind, share: float = 0.4, amplify: float = 1.5, back: int = 2, moved: float = 0.5) -> Tensor:
        """1 + (amplify - 1) at chosen tokens.

        local: the share of tokens where the distance changes most; global: those of the largest influence; coupled: global, but
        an anchor that looks near and follows a jump of the distance within `back` tokens hands `moved` of its gain to the token
        of that jump, once for each such token. Thresholds of near and jump are medians (ours).
        """
        # as exact as what it is given: a number times a mask would be of float32
        steps, gain = steps_of(self.distance), torch.full_like(self.distance, amplify - 1)
        if kind == "local":
            return 1 + gain * largest(steps, share)
        anchors = largest(self.influence, share)
        if kind == "global":
            return 1 + gain * anchors
        led = self.leaders(anchors, back)
        dominated, leading = torch.zeros_like(anchors), torch.zeros_like(anchors)
        dominated[list(led)], leading[list(led.values())] = True, True
        return 1 + gain * (anchors & ~dominated) + gain * (1 - moved) * dominated + gain * moved * leading

    def leaders(self, anchors: Bool[Tensor, " t"], back: int) -> dict[int, int]:
        """Anchor -> the token before it whose jump it follows."""
        steps = steps_of(self.distance)
        near, jump = median(self.distance), median(steps)
        led: dict[int, int] = {}
        for t in map(int, anchors.nonzero()[:, 0]):
            before = steps[max(0, t - back) : t]
            if len(before) and self.distance[t] <= near and before.max() >= jump:
                led[t] = max(0, t - back) + int(before.argmax())
        return led


@dataclass(frozen=True)
class AttentionRhythm(PlainWeight):
    """`amplify` where A >= 0 and a token plans or anchors, 1 elsewhere; coupled: anchors hand a part to the token they follow.

    Attention Illuminates LLM Reasoning, arXiv:2510.13554. Costs a forward in which a few layers compute their attention twice, of
    (completion x completion) floats per head. Windows are the paper's (10 back, 10 to 50 ahead); which heads are local, the
    thresholds (medians) and the part that is handed on are ours. Looks at the prompt and at pictures are left out.
    """

    kind: Kind = "coupled"
    """local: where the distance of looks jumps. global: what later tokens look at. coupled: both, tied together."""
    share: Share = 0.4
    """Share of a completion's tokens that are chosen."""
    amplify: Factor = 1.5
    """The factor of a chosen token."""
    back: Count = 2
    """coupled: tokens before an anchor in which a jump may lead to it."""
    moved: Share = 0.5
    """coupled: the part of an anchor's gain that goes to that jump."""

    reads = (ATTENTION_DISTANCE, ATTENTION_INFLUENCE)

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        weights = torch.ones_like(batch.advantages)
        for i, mask in enumerate(batch.rollouts.action_mask):
            length = int(mask.nonzero()[-1]) + 1 if bool(mask.any()) else 0
            if length > 1:
                rhythm = Rhythm(*(batch.frozen[reading][i, :length] for reading in self.reads))
                weights[i, :length] = rhythm.factors(self.kind, self.share, self.amplify, self.back, self.moved).to(weights)
        return torch.where(batch.advantages >= 0, weights, 1.0)
