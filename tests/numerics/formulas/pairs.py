"""Formulas of preference pairs of pictures (DPO by denoising), and sums of log-probabilities, which nothing runs yet."""

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


def denoising_preference_loss(
    chosen: Float[Tensor, " n"],
    rejected: Float[Tensor, " n"],
    chosen_reference: Float[Tensor, " n"],
    rejected_reference: Float[Tensor, " n"],
    beta: float,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """-log sigmoid(-beta/2 [(e_w - e_w ref) - (e_l - e_l ref)]), e the mean squared error of a prediction (arXiv:2311.12908).

    Winner and loser must be noised with the same noise at the same time.
    """
    inside = -beta / 2 * ((chosen - chosen_reference) - (rejected - rejected_reference))
    return -torch.nn.functional.logsigmoid(inside), inside
