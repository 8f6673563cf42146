"""Log-probability of a token and entropy of its distribution; the backward pass keeps one tensor of the vocabulary's size."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


class TokenValues(torch.autograd.Function):
    """log p(token) and H = -sum p log p, p = softmax(logits); d log p(y)/dz = 1[y] - p, dH/dz = -p (log p + H).

    Autograd would keep log p, p and p log p, and make as many more on its way back.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Float[Tensor, "m v"], tokens: Int[Tensor, " m"], with_entropy: bool
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Log-probabilities, and entropies or zeros."""
        logprobs = logits.log_softmax(-1)
        chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
        entropy = logprobs.exp().mul_(logprobs).sum(-1).neg_() if with_entropy else torch.zeros_like(chosen)
        ctx.save_for_backward(logprobs, tokens, entropy)
        ctx.with_entropy = with_entropy
        return chosen, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Float[Tensor, "m v"], None, None]:
        """The gradient of the logits."""
        logprobs, tokens, entropy = ctx.saved_tensors
        of_chosen, of_entropy = grads[0][:, None], grads[1][:, None]
        grad = logprobs.exp()
        if ctx.with_entropy:
            grad.mul_((logprobs + entropy[:, None]).mul_(of_entropy).add_(of_chosen)).neg_()
        else:
            grad.mul_(-of_chosen)
        return grad.scatter_add_(-1, tokens[:, None], of_chosen), None, None


def token_values(logits: Float[Tensor, "m v"], tokens: Int[Tensor, " m"], quantities: tuple[str, ...]) -> Float[Tensor, "q m"]:
    """`logprobs` and `entropy` of m tokens, in this order of quantities."""
    chosen, entropy = TokenValues.apply(logits, tokens, "entropy" in quantities)  # type: ignore[no-untyped-call]
    known = {"logprobs": chosen, "entropy": entropy}
    return torch.stack([known[name] for name in quantities])
