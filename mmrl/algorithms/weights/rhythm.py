"""Weights by the rhythm of attention: tokens where a completion plans, and those that it is anchored at, count more."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.rhythm import Kind, Rhythm
from mmrl.algorithms.weights.aggregate import PlainWeight
from mmrl.core.readings import ATTENTION_DISTANCE, ATTENTION_INFLUENCE
from mmrl.core.types import Batch, Counts
from mmrl.runtime.ranges import Count, Factor, Share


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
