"""Objectives of whole groups: right answers apart from wrong ones, log-ratios regressed on advantages; and of a value head."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.objectives.surrogates import Values
from mmrl.algorithms.objectives.terms import (
    LOG_RATIO_BOUND,
    PLAIN,
    OfTheGroup,
    OldPenalty,
    Penalty,
    actions_only,
    log_ratio,
    rollout_mean,
)
from mmrl.core.readings import LOGPROBS, MEAN_REWARD, OLD_LOGPROBS, REWARD, VALUE
from mmrl.core.types import Batch, Reading, Scope
from mmrl.runtime.ranges import Count, NonNegative, Positive, Share, With
from mmrl.runtime.tensors import masked_mean, within


@dataclass(frozen=True)
class AdvantageRegression(OfTheGroup):
    """(A_i - (rho_i - mean) / (std + eps))^2, rho_i = sum_t log policy - log old, over a group (Reg-GRPO, arXiv:2506.07464).

    No clip and no minimum; only a KL penalty bounds the step, since the value does not change when all rho grow alike. At rho =
    0, where every step starts, the gradient is -2 A / eps: plain policy gradient with a gain of 2 / eps. So it only regresses
    from the second update on the same rollouts, and only where rho spreads by more than eps. The paper names no eps; its formula
    has none. Groups whose advantages are all 0 have nothing to regress on and give 0.
    """

    eps: Positive = 0.1
    """In nats. At 1 and above, small updates are hardly more than policy gradient; at 0.01 the first one is all gain."""
    level: Literal["sum", "mean"] = "sum"
    """rho is the paper's sum over the actions, which favours long rollouts, or their mean."""

    @property
    def at_first_update(self) -> str | None:
        return f"{PLAIN} of whole rollouts, times {2 / self.eps:g}"

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        mask = batch.rollouts.action_mask
        live = mask.any(1)
        rho = actions_only(readings[LOGPROBS] - readings[OLD_LOGPROBS], mask).sum(1)
        if self.level == "mean":
            rho = rho / mask.sum(1).clamp(min=1)
        advantages = rollout_mean(batch.advantages, mask)[:, 0]
        ids = batch.rollouts.group_ids
        fitted, informed = torch.zeros_like(rho), torch.zeros_like(advantages)
        fitted[live] = within(ids[live], rho[live], self._standard_scores)
        informed[live] = within(ids[live], advantages[live], lambda a: (a != 0).any().to(a).expand_as(a))
        values = (informed * (advantages - fitted) ** 2)[:, None].expand_as(mask)
        spread = rho.detach().abs()[:, None].expand_as(mask)
        return actions_only(values, mask), {"policy/log_ratio": actions_only(spread, mask)}

    def _standard_scores(self, rho: Tensor) -> Tensor:
        centred = rho - rho.mean()
        # The floor keeps the gradient of a root at 0 finite: there it is 0.
        deviation = (centred**2).mean().clamp(min=1e-36).sqrt()
        return centred / (deviation + self.eps)


@dataclass(frozen=True)
class ValueFit(Penalty):
    """(V_t - gamma^k R)^2, R the row's total reward and k the actions that follow; 0 in rows that were cut.

    With `group`: (V - R)^2 of the value of the prompt alone, R the mean reward of its samples (PCL, arXiv:2510.01135).

    The head of policy.scores = ["value"] learns what comes of a row, from rows that ended alone, as in T-PPO (arXiv:2506.15050).
    The gradient goes on into the policy. Take the advantage ValueGae with it.
    """

    gamma: Annotated[Share, With("group", False)] = 1.0
    """What a reward is worth one action earlier."""
    group: bool = False
    """Only before a row's first action, and against the mean reward of its group; the row's actions share the square."""

    @property
    def scope(self) -> Scope:
        return "rollout" if self.group else "action"

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (VALUE, MEAN_REWARD if self.group else REWARD)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        if self.group:
            first = mask & (mask.cumsum(1) == 1)
            off = actions_only((actions_only(readings[VALUE] - readings[MEAN_REWARD], first)).sum(1, keepdim=True), mask)
            return off**2, {"policy/value_error": off.detach().abs()}
        ended = mask & ~batch.rollouts.truncated().to(mask.device)[:, None]
        follow = mask.sum(1, keepdim=True) - mask.cumsum(1)
        off = actions_only(readings[VALUE] - self.gamma**follow * readings[REWARD], ended)
        return off**2, {"policy/value_error": off.detach().abs()}


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
