"""Weights of tokens by the samples of a group: where these part ways, and what right and wrong ones share."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.weights.aggregate import PlainWeight
from mmrl.core.readings import GROUP_DIVERGENCE, MEAN_REWARD, REWARD
from mmrl.core.types import Batch, Counts
from mmrl.runtime.ranges import NonNegative


@dataclass(frozen=True)
class GroupDivergence(PlainWeight):
    """w_t = 1 + (alpha - 1) (D_t - min D) / (max D - min D), D_t = how far a group's distributions differ there (TW-GRPO).

    arXiv:2505.24718. D_t = mean_g sum_v exp(d) - d - 1, d = clamp(mean over the group of log p - log p, 11), the same for all
    rows of a group; rows that have ended count as uniform. At the first token all rows have the same distribution, so min D is 0.
    The code of the paper takes the current weights and lets a gradient through the weight; here it is the weights that sampled,
    so in later passes the values are stale.
    """

    alpha: NonNegative = 1.7
    """Weight where the group disagrees most; 1 = uniform. The paper's script has 1.7, its code 1.4."""

    reads, scope = (GROUP_DIVERGENCE,), "group"

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        divergence = batch.frozen[GROUP_DIVERGENCE].to(batch.advantages.dtype)
        least, most = divergence.amin(dim=1, keepdim=True), divergence.amax(dim=1, keepdim=True)
        return 1 + (self.alpha - 1) * (divergence - least) / (most - least + 1e-8)


ROUNDING = 1e-6
"""A reward this near to its group's mean is neither right nor wrong."""


@dataclass(frozen=True)
class ConflictTokens(PlainWeight):
    """w / max(1, number of shared tokens), w at those 0 in wrong answers and `boost` in right ones, 1 at the others (GTPO).

    GTPO, arXiv:2508.03772. An answer is right if its reward is above its group's mean and wrong below, whatever else its
    advantage is made of. A token is shared if some answer of the other kind in the group has the same token at the same position,
    counted from the beginning without a gap, or likewise from the end; where both counts reach it, weights are multiplied. Only
    the rows of the minibatch are compared. In the authors' code a mask that was not flipped miscounts such tokens; here the
    tokens counted are the tokens weighted.
    """

    boost: NonNegative = 2.0
    """Weight of shared tokens in right answers."""

    reads, scope = (REWARD, MEAN_REWARD), "group"

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        """Raises ValueError when samples have no tokens (pictures)."""
        weights = torch.ones_like(batch.advantages)
        mask, ids = batch.rollouts.action_mask, batch.rollouts.group_ids
        lead = (batch.frozen[REWARD] - batch.frozen[MEAN_REWARD])[:, 0].nan_to_num()
        sign = torch.where(lead.abs() > ROUNDING, lead.sign(), 0.0)
        tokens = [self._tokens(sample.token_ids, group.prompt.id) for group, sample in batch.rollouts.samples()]
        for i, own in enumerate(tokens):
            if sign[i] == 0:
                continue
            others = [tokens[j] for j in range(len(tokens)) if ids[j] == ids[i] and sign[j] == -sign[i]]
            factor = self.boost if sign[i] > 0 else 0.0
            start, end = shared(own, others), shared(own[::-1], [other[::-1] for other in others])
            weights[i, :start] *= factor
            weights[i, max(0, len(own) - end) : len(own)] *= factor
            weights[i] /= max(1, min(start + end, len(own)))
        return weights * mask

    def _tokens(self, token_ids: Sequence[int] | None, prompt: str) -> Sequence[int]:
        if token_ids is None:
            raise ValueError(f"ConflictTokens compares tokens, and the samples of prompt {prompt!r} have none: it is for text")
        return token_ids


def shared(own: Sequence[int], others: Sequence[Sequence[int]]) -> int:
    """How many tokens from the beginning, without a gap, also occur at the same position in one of the other rows."""
    for place, token in enumerate(own):
        if not any(place < len(other) and other[place] == token for other in others):
            return place
    return len(own)
