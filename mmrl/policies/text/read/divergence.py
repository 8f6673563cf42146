"""How far the rows of a group disagree about the next token, over the whole vocabulary and in chunks of positions."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

CLAMP = 11.0


def disagreement(logprobs: Float[Tensor, "g t v"]) -> Float[Tensor, " t"]:
    """mean_g sum_v exp(d) - d - 1, d = clamp(mean_g log p - log p, -11, 11) (TW-GRPO's token divergence, arXiv:2505.24718).

    The mean of log p is no distribution and the sum over v is not weighted by one: this is the code's measure, not a KL.
    """
    d = (logprobs.mean(0) - logprobs).clamp(-CLAMP, CLAMP)
    return (d.exp() - d - 1).sum(-1).mean(0)


def group_divergence(
    logits: Callable[[Tensor, Tensor], Tensor],
    hidden: Float[Tensor, "g t d"],
    temperature: Float[Tensor, " g"],
    mask: Bool[Tensor, "g t"],
    allowed: Bool[Tensor, " v"],
    chunk: int,
) -> Float[Tensor, "g t"]:
    """The disagreement of all rows at every position, the same in every row; rows that have ended there count as uniform.

    `logits`: (m, d), (m,) -> (m, v); only `allowed` tokens are in the vocabulary; the logits of `chunk` tokens exist at a time.
    """
    rows, length = mask.shape
    steps, words = max(1, chunk // rows), int(allowed.sum())
    pieces: list[Tensor] = []
    for start in range(0, length, steps):
        some, alive = hidden[:, start : start + steps], mask[:, start : start + steps]
        heat = temperature[:, None].expand(alive.shape)
        logprobs = logits(some[alive], heat[alive])[:, allowed].log_softmax(-1)
        uniform = logprobs.new_full((*alive.shape, words), -math.log(words))
        pieces.append(disagreement(uniform.index_put((alive,), logprobs)))
    return torch.cat(pieces).expand(rows, length) if pieces else hidden.new_zeros(rows, length)
