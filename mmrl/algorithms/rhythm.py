"""Where a completion plans and where it anchors, judged by its attention (arXiv:2510.13554)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

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
