"""Temperatures that follow how unsure the policy is of a token."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Heat(NamedTuple):
    """T (1 + amount u) for a token, u in [-1, 1] how far its log entropy is from a pivot: `Heat(-0.3, 0.8, 0.5, 0.4, 0.05)`."""

    pivot: float = 0.0
    """The log entropy of the run's own temperature."""
    deviation: float = 1.0
    """Of log entropies about the pivot."""
    above: float = 0.0
    """u per deviation above the pivot."""
    below: float = 0.0
    """u per deviation below it, where distances are negative."""
    amount: float = 0.0

    def factor(self, entropy: Float[Tensor, " *n"]) -> Float[Tensor, " *n"]:
        """By how much a temperature is multiplied at tokens of these entropies, in nats."""
        distance = (entropy.clamp(min=1e-12).log() - self.pivot) / self.deviation
        size = distance * torch.where(distance > 0, self.above, self.below)
        return 1 + self.amount * size.clamp(-1, 1)

    def of(self, logprobs: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
        """The log-probabilities that tokens are drawn with, from those at the run's temperature."""
        p = logprobs.exp()
        entropy = -torch.where(p > 0, p * logprobs, 0.0).sum(-1)
        return (logprobs / self.factor(entropy)[:, None]).log_softmax(-1)
