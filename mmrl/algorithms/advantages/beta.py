"""How much a group counts, by how common its success rate is among the prompts of the step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.algorithms.advantages.statistics import by_group, one_per_group, refuse_unbounded, to_credit, totals_and_keep
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import Positive, check_ranges


@dataclass(frozen=True)
class BetaNorm:
    """A = (r - p) / Beta(p; alpha, beta), p the group's mean reward, alpha and beta fitted to the step's p (BNPO).

    BNPO, arXiv:2506.02864. With m, v the mean and unbiased variance of p over the prompts, c = m (1 - m) / v - 1:
    alpha = max(1, 1 + c m / 3), beta = max(1, 1 + c (1 - m) / 3). A step of one prompt has alpha = beta = 1: A = r - p. Not
    implemented: the paper's variant that does this for each reward separately.
    """

    max_weight: Positive = 1e6
    """Largest 1 / density, where the density of p vanishes."""

    __post_init__ = check_ranges
    min_group_size = 2

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError when a total reward lies outside [0, 1]."""
        totals, keep = totals_and_keep(scores)
        kept = totals[keep]
        refuse_unbounded(kept, "BetaNorm")
        centred = by_group(rollouts, keep, totals, lambda r: r - r.mean())
        rates = (totals - centred).clamp(0, 1)
        weight = torch.ones_like(totals)
        weight[keep] = self._weights(rates[keep], rollouts.group_ids[keep])
        return to_credit(centred * weight, keep, rollouts, scores)

    def _weights(self, rates: Tensor, group_ids: Tensor) -> Tensor:
        alpha, beta = self.shape(one_per_group(rates, group_ids))
        density = torch.distributions.Beta(rates.new_tensor(alpha), rates.new_tensor(beta), validate_args=False)
        return density.log_prob(rates).neg().exp().clamp(max=self.max_weight)

    def shape(self, rates: Tensor) -> tuple[float, float]:
        """alpha and beta for the success rates (q,) of the prompts."""
        if len(rates) < 2:
            return 1.0, 1.0
        mean, variance = float(rates.mean()), float(rates.var())
        if variance == 0:
            return 1.0, 1.0
        spread = mean * (1 - mean) / variance - 1
        return max(1.0, 1 + spread * mean / 3), max(1.0, 1 + spread * (1 - mean) / 3)
