"""Muon in float32: torch's takes its products in bfloat16, which a CPU without that type computes 19 times as slowly."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmrl.runtime.tensors import is_matrix

_MOMENTUM = 0.95
_STEPS = 5
_COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of the quintic polynomial, from Keller Jordan's "Muon: An optimizer for hidden layers in neural networks"."""
_TINY = 1e-7


class Muon(torch.optim.AdamW):
    """W <- (1 - lr d) W - 0.2 lr sqrt(max(m, n)) NS5(lerp(g, b, 0.95)),  b <- lerp(b, g, 0.05);  W is m x n, NS5 orthogonalizes.

    `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"` for matrices (arXiv:2502.16982), d the weight decay. Embeddings,
    and all that is no matrix, follow AdamW at the same rate.
    """

    def __init__(self, weights: Iterable[Tensor], lr: float, weight_decay: float = 0.0, **adamw: Any) -> None:
        found = list(weights)
        matrices = [weight for weight in found if is_matrix(weight)]
        chosen = set(map(id, matrices))
        rest = [weight for weight in found if id(weight) not in chosen]
        super().__init__([{"params": rest}, {"params": matrices}], lr=lr, weight_decay=weight_decay, **adamw)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override] - no loss is returned
        group = self.param_groups[1]
        weights, scale = (
            [weight for weight in group["params"] if weight.grad is not None],
            1 - group["lr"] * group["weight_decay"],
        )
        gradients = [weight.grad for weight in weights]
        # AdamW passes over what has no gradient
        for weight in weights:
            weight.grad = None
        super().step()
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        for shelf, updates in _by_shape(weights, [self._update(weight) for weight in weights]):
            rate = 0.2 * group["lr"] * math.sqrt(max(shelf[0].shape))
            for weight, update in zip(shelf, orthogonalize(torch.stack(updates)), strict=True):
                weight.mul_(scale).sub_(update, alpha=rate)

    def _update(self, weight: Tensor) -> Tensor:
        state: dict[str, Tensor] = self.state[weight]
        assert weight.grad is not None
        if "mean" not in state:
            state["mean"] = torch.zeros_like(weight)
        return weight.grad.lerp(state["mean"].lerp_(weight.grad, 1 - _MOMENTUM), _MOMENTUM)


def orthogonalize(matrices: Tensor) -> Tensor:
    """The nearest matrices with orthonormal rows or columns, roughly: singular values end between 0.7 and 1.2.

    Args:
        matrices: (number, m, n); five steps of Newton-Schulz are taken in their own dtype.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalize(matrices.mT).mT
    a, b, c = _COEFFICIENTS
    x = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp(min=_TINY)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _by_shape(weights: Sequence[Tensor], updates: Sequence[Tensor]) -> Iterable[tuple[list[Tensor], list[Tensor]]]:
    shelves: dict[torch.Size, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    for weight, update in zip(weights, updates, strict=True):
        shelf = shelves[weight.shape]
        shelf[0].append(weight)
        shelf[1].append(update)
    return shelves.values()
