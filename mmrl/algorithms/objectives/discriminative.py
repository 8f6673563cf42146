"""Right answers separated from wrong ones, group by group, inside a trust region that is a hinge."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.objectives.surrogates import Values
from mmrl.algorithms.objectives.terms import LOG_RATIO_BOUND, OfTheGroup, OldPenalty, actions_only, log_ratio
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS
from mmrl.core.types import Batch, Reading
from mmrl.runtime.ranges import Count, NonNegative, Positive
from mmrl.runtime.tensors import masked_mean


@dataclass(frozen=True)
class Discriminative(OfTheGroup, at_first_update=None):
    """-(sum_pos w_i s_i - tau log mean_neg exp(s / tau)) per group, s_i the mean log policy or mean ratio of a rollout.

    DisCO (arXiv:2505.12366): w_i = 1 / number of right answers. DRPO (arXiv:2510.04474): w_i ~ exp((1 - len_i / length) /
    short), so that right answers that are short count more. A > 0 is right and A < 0 wrong; a group without both gives 0. Take
    the aggregation GroupSum, under which the term is the mean over groups, also those that give 0.
    """

    score: Literal["logprob", "ratio"] = "logprob"
    """s: the mean log-probability, or the mean of policy / old."""
    tau: Positive | None = 10.0
    """Temperature over the wrong answers: the smaller, the more the likeliest one counts; None: their plain mean (DisCO-b)."""
    short: Positive | None = None
    """DRPO's lambda, in shares of `length`; None: right answers count alike."""
    length: Count | None = None
    """The unit of `short`, in actions; None: the run fills in its max_new_tokens."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (LOGPROBS, OLD_LOGPROBS) if self.score == "ratio" else (LOGPROBS,)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        """Raises ValueError when `short` is set and `length` was never filled in."""
        mask, ids = batch.rollouts.action_mask, batch.rollouts.group_ids
        first = torch.where(mask, batch.advantages, 0.0).sum(1) / mask.sum(1).clamp(min=1)
        scores = masked_mean(self._scores(readings, batch), mask, dim=1)
        rows = torch.zeros_like(scores)
        for one in sorted(set(map(int, ids))):
            right, wrong = (ids == one) & (first > 0), (ids == one) & (first < 0)
            if bool(right.any()) and bool(wrong.any()):
                rows = torch.where(right, -self._share(mask.sum(1), right) * scores, rows)
                rows = torch.where(wrong, self._against(scores[wrong]) / wrong.sum(), rows)
        values = actions_only(rows[:, None].expand(mask.shape), mask)
        return values, {"policy/score": actions_only(scores[:, None].expand(mask.shape), mask).detach()}

    def _scores(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Float[Tensor, "n t"]:
        mask = batch.rollouts.action_mask
        if self.score == "ratio":
            return log_ratio(readings, mask).exp()
        return actions_only(readings[LOGPROBS], mask)

    def _share(self, lengths: Tensor, right: Tensor) -> Float[Tensor, " n"]:
        """w: the weights of right rows, which add up to 1; 0 elsewhere."""
        if self.short is None:
            return right / right.sum()
        if self.length is None:
            raise ValueError(
                "Discriminative.short weighs answers by their length, but length is not set and nothing filled in the run's "
                "max_new_tokens: give the term a length, Discriminative(short=0.1, length=1024)"
            )
        return torch.where(right, -lengths / (self.length * self.short), -torch.inf).softmax(0)

    def _against(self, wrong: Float[Tensor, " m"]) -> Tensor:
        if self.tau is None:
            return wrong.mean()
        return self.tau * ((wrong / self.tau).logsumexp(0) - math.log(len(wrong)))


@dataclass(frozen=True)
class TrustHinge(OldPenalty, scope="batch"):
    """sg[max(0, beta (K - delta))] K, K = mean over the minibatch's actions of KL(old || policy) (DisCO, arXiv:2505.12366).

    0 as long as K stays below delta; beyond it, a pull that grows with the excess. "k3": ratio - 1 - log ratio; "k1": log
    old - log policy. K is a mean over the whole minibatch, which therefore is never cut.
    """

    beta: NonNegative = 1000.0
    """Steepness, per nat beyond delta."""
    delta: NonNegative = 1e-4
    """In nats per action."""
    estimator: Literal["k1", "k3"] = "k3"
    """Of the KL divergence, per action: one of the formulas above."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        gap = actions_only(readings[LOGPROBS] - readings[OLD_LOGPROBS], mask).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        per_action = -gap if self.estimator == "k1" else gap.exp() - 1 - gap
        mean = masked_mean(per_action, mask)
        pull = (self.beta * (mean.detach() - self.delta)).clamp(min=0)
        # A mean over actions whatever the aggregation: shares are divided out again.
        even = torch.where(batch.share > 0, 1 / (mask.sum().clamp(min=1) * batch.share), 0.0)
        metrics = {"policy/kl_old": actions_only(per_action, mask).detach()}
        return pull * per_action * even, metrics
