"""How uncertain a policy is of each action, compared with the others of a minibatch or a step (HAPO)."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Actions = Float[Tensor, "n t"]


class Uncertainty(NamedTuple):
    """How uncertain each action is, and the numbers that it was measured with."""

    size: Actions
    """In [-1, 1]; 0 where no action is."""
    pivot: float
    """Of the log entropy."""
    deviation: float
    """Of the log entropies about the pivot."""
    upper: float
    """1 / the largest distance above the pivot, in deviations."""
    lower: float
    """1 / the largest distance below it, which is negative."""


def uncertainty(entropy: Actions, mask: Bool[Tensor, "n t"], pivot: float, sign: Literal["paper", "code"]) -> Uncertainty:
    """The distance of log entropies from their quantile `pivot`, scaled to [-1, 1]; nothing has a gradient."""
    values = entropy.detach().clamp(min=1e-12).log()
    known = values[mask]
    if not len(known):
        return Uncertainty(torch.zeros_like(values), 0.0, 0.0, 0.0, 0.0)
    middle = known.quantile(pivot, interpolation="nearest")
    deviation = ((known - middle) ** 2).mean().sqrt().clamp(min=1e-12)
    distance = (values - middle) / deviation
    above, below = distance[mask].max(), distance[mask].min()
    upper = 1 / above if above > 0 else torch.zeros_like(above)
    lower = 1 / below if below < 0 else torch.zeros_like(below)
    down = distance * lower if sign == "code" else -distance * lower
    size = torch.where(distance > 0, distance * upper, down)
    return Uncertainty(torch.where(mask, size, 0.0), *map(float, (middle, deviation, upper, lower)))
