"""Formulas for credit by segments of an answer, whose ends are valued by going on from them (SPO-chain, arXiv:2505.23564).

Prefixes of the policy's own answers can be sampled on (`Request.prefix`); no planner values them yet, and the formulas stand here
with their checks.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def cutpoints(probabilities: Float[Tensor, " t"], threshold: float = 0.9, interval: int = 5) -> list[int]:
    """The last tokens of the prefixes that are valued: in front of every `interval`-th token less likely than `threshold`.

    -1 is the prompt alone.
    """
    unsure = [place for place, p in enumerate(map(float, probabilities)) if p < threshold]
    return [place - 1 for place in unsure[::interval]]


def segment_advantages(
    probabilities: Float[Tensor, " t"], cuts: Sequence[int], values: Sequence[float], reward: float, threshold: float = 0.9
) -> Float[Tensor, " t"]:
    """A_t = V(end of the segment) - V(its beginning), for tokens less likely than `threshold`; 0 for others.

    Args:
        values: the mean reward of answers that go on from each cut; the answer itself ends at `reward`.
    """
    out = torch.zeros_like(probabilities)
    ends, worths = [*cuts[1:], len(out) - 1], [*values[1:], reward]
    for begin, end, before, after in zip(cuts, ends, values, worths, strict=True):
        out[begin + 1 : end + 1] = after - before
    return torch.where(probabilities < threshold, out, 0.0)
