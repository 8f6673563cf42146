"""One step of gradient ascent whose size follows from the gradient, so that it raises what it climbs on every CPU."""

from collections.abc import Iterable

import torch
from torch import Tensor


def climb(value: Tensor, weights: Iterable[Tensor], rise: float) -> None:
    """Move the weights along the gradient of `value` so far that to first order it grows by `rise`."""
    weights = list(weights)
    gradients = torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)
    squared = sum(float(gradient.double().square().sum()) for gradient in gradients)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight += gradient * (rise / squared)
