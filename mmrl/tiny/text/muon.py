"""Muon in float32: torch's takes its products in bfloat16, which a CPU without that type computes 19 times as slowly."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_MOMENTUM = 0.95
_STEPS = 5
_COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of the quintic polynomial, from Keller Jordan's "Muon: An optimizer for hidden layers in neural networks"."""
_TINY = 1e-7


class Muon(torch.optim.Optimizer):
    """W <- W - 0.2 lr sqrt(max(m, n)) NS5(lerp(g, b, 0.95)),  b <- lerp(b, g, 0.05);  W is m x n, NS5 orthogonalizes.

    `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"` and no weight decay, for matrices only (arXiv:2502.16982).
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override] - no loss is returned
        for group in self.param_groups:
            for weights, updates in _by_shape(self._updates(group["params"])):
                scale = 0.2 * group["lr"] * math.sqrt(max(weights[0].shape))
                for weight, update in zip(weights, orthogonalize(torch.stack(updates)), strict=True):
                    weight.sub_(update, alpha=scale)

    def _updates(self, weights: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        found: list[tuple[Tensor, Tensor]] = []
        for weight in weights:
            if weight.grad is not None:
                state: dict[str, Any] = self.state[weight]
                mean = state.setdefault("mean", torch.zeros_like(weight)).lerp_(weight.grad, 1 - _MOMENTUM)
                found.append((weight, weight.grad.lerp(mean, _MOMENTUM)))
        return found


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


def _by_shape(updates: list[tuple[Tensor, Tensor]]) -> Iterable[tuple[list[Tensor], list[Tensor]]]:
    shelves: dict[torch.Size, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    for weight, update in updates:
        shelf = shelves[weight.shape]
        shelf[0].append(weight)
        shelf[1].append(update)
    return shelves.values()
