"""Sums of log-probabilities of generators that write tokens, which nothing runs yet."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def summed_logprobs(
    logits: Float[Tensor, "n t v"], labels: Int[Tensor, "n t"], mask: Bool[Tensor, "n t"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Sum and mean of the log-probabilities of the labels at the places of the mask; labels stand where they are predicted."""
    chosen = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    total = torch.where(mask, chosen, 0.0).sum(1)
    return total, total / mask.sum(1).clamp(min=1)
