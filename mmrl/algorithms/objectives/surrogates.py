"""Surrogates: terms that make actions with a positive advantage more likely. Values per action, to be minimized."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.algorithms.beside import part_numbers
from mmrl.algorithms.objectives.terms import (
    LOG_RATIO_BOUND,
    PLAIN,
    Clips,
    Level,
    OfLevel,
    ProportionalToAdvantage,
    Surrogate,
    actions_only,
    log_ratio,
    ratio_metrics,
    rollout_mean,
)
from mmrl.algorithms.statistics import uncertainty
from mmrl.core.readings import ENTROPY, LOGPROBS, OLD_LOGPROBS, ROLLOUT_LOGPROBS, START_LOGPROBS
from mmrl.core.types import Batch, ClipRange, Reading, Scope
from mmrl.runtime.ranges import NonNegative, Number, Positive, Range, Seed, Share, With, check_ranges
from mmrl.runtime.tensors import masked_mean

Values = tuple[Float[Tensor, "n t"], dict[str, Tensor]]


@dataclass(frozen=True)
class Reinforce(ProportionalToAdvantage, reads=(LOGPROBS,)):
    """-A log policy: no ratio, so only correct for the first update after sampling (REINFORCE; GPG, arXiv:2504.02546)."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        return -batch.advantages * actions_only(readings[LOGPROBS], batch.rollouts.action_mask), {}


@dataclass(frozen=True)
class Clip(Clips, ProportionalToAdvantage):
    """-min(ratio A, clip(ratio, 1 - low, 1 + high) A): PPO's surrogate (arXiv:1707.06347).

    high > low is DAPO's clip-higher (arXiv:2503.14476). Level `rollout` takes one length-normalized ratio per
    rollout (GSPO, arXiv:2507.18071) and wants far smaller bounds; 0.2 would never clip there.
    """

    low: Share = 0.2
    """The ratio counts as at least 1 - low."""
    high: NonNegative = 0.2
    """The ratio counts as at most 1 + high."""
    level: Level = "action"
    """action: a ratio for every action. rollout: one for all of a rollout, the exponential of its mean log ratio."""
    token_gradient: Annotated[bool, With("level", "rollout")] = False
    """GSPO-token: the value is the rollout's ratio, the gradient each action's own; needed when A differs between actions."""
    delta: Annotated[float, Range(above=1)] | None = None
    """Two-sided: the unclipped ratio is at most delta, which bounds A < 0 (INTELLECT-2, arXiv:2505.07291)."""
    dual: Annotated[float, Range(above=1)] | None = None
    """Dual clip: for A < 0 the value is at most -dual A (arXiv:1912.09729); 1 would stop them all."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.delta is not None and self.delta <= 1 + self.high:
            raise ValueError(f"Clip.delta is {self.delta}, inside the clip range: set it above 1 + high = {1 + self.high}")

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask, advantages = batch.rollouts.action_mask, batch.advantages
        difference = log_ratio(readings, mask, self.level)
        if self.token_gradient:
            logprobs = actions_only(readings[LOGPROBS], mask)
            difference = difference.detach() + logprobs - logprobs.detach()
        ratio = difference.exp()
        plain = -advantages * (ratio if self.delta is None else ratio.clamp(max=self.delta))
        clipped = -advantages * ratio.clamp(1 - self.low, 1 + self.high)
        values = torch.maximum(plain, clipped)
        bound = clipped > plain
        if self.dual is not None:
            most = -self.dual * advantages
            bound = bound | ((advantages < 0) & (values > most))
            values = torch.where(advantages < 0, torch.minimum(values, most), values)
        return values, {"policy/clip_frac": bound.to(values.dtype), **ratio_metrics(difference)}


@dataclass(frozen=True)
class Cispo(OfLevel, ProportionalToAdvantage):
    """-sg[clip(ratio)] A log policy: every action keeps its gradient, its weight is bounded (CISPO, arXiv:2506.13585).

    The bounds are on the ratio itself: TRL's epsilon_high=5 is high=5, low=None; verl's 0.2 and 0.28 are low=0.8, high=1.28.
    """

    low: Share | None = None
    """Least weight, a ratio; None: no bound."""
    high: NonNegative | None = 5.0
    """Largest weight, a ratio; None: no bound."""
    level: Level = "action"
    """action: a ratio for every action. rollout: one for all of a rollout, the exponential of its mean log ratio."""

    @property
    def clip_range(self) -> ClipRange:
        return ClipRange(
            math.inf if self.low is None else 1 - self.low, math.inf if self.high is None else self.high - 1, self.level
        )

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        difference = log_ratio(readings, mask, self.level)
        ratio = difference.detach().exp()
        weight = ratio if self.low is None and self.high is None else ratio.clamp(self.low, self.high)
        values = -weight * batch.advantages * actions_only(readings[LOGPROBS], mask)
        return values, {"policy/clip_frac": (weight != ratio).to(values.dtype), **ratio_metrics(difference)}


@dataclass(frozen=True)
class Sapo(OfLevel, ProportionalToAdvantage):
    """-(4 / tau) sigmoid(tau (ratio - 1)) A: a soft gate in place of the clip (SAPO, arXiv:2511.20347).

    Slope 1 at ratio 1. A > 0 uses tau_positive, all others tau_negative.
    """

    tau_positive: Positive = 1.0
    """Steepness of the gate where A > 0; the larger, the narrower."""
    tau_negative: Positive = 1.05
    """Steepness of the gate where A <= 0."""
    level: Level = "action"
    """action: a ratio for every action. rollout: one for all of a rollout, the exponential of its mean log ratio."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        difference = log_ratio(readings, batch.rollouts.action_mask, self.level)
        positive = torch.full_like(batch.advantages, self.tau_positive)
        tau = torch.where(batch.advantages > 0, positive, self.tau_negative)
        values = -4 / tau * torch.sigmoid(tau * (difference.exp() - 1)) * batch.advantages
        return values, ratio_metrics(difference)


@dataclass(frozen=True)
class Gmpo(Clips, ProportionalToAdvantage, scope="rollout"):
    """-A exp(mean_t g_t), g = min(d, clip(d)) for A > 0, max for A < 0, d = log ratio (GMPO, arXiv:2507.20673).

    The bounds are in log space. A is the rollout's mean advantage; every action of a rollout has the same value.
    """

    low: NonNegative = 0.4
    """A log ratio counts as at least -low, in nats."""
    high: NonNegative = 0.4
    """A log ratio counts as at most high, in nats."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask, advantages = batch.rollouts.action_mask, batch.advantages
        difference = log_ratio(readings, mask)
        clipped = difference.clamp(-self.low, self.high)
        pessimistic = torch.where(advantages > 0, torch.minimum(difference, clipped), torch.maximum(difference, clipped))
        values = -rollout_mean(advantages, mask) * rollout_mean(pessimistic, mask).exp()
        return values, {"policy/clip_frac": (pessimistic != difference).to(values.dtype), **ratio_metrics(difference)}


@dataclass(frozen=True)
class Vespo(ProportionalToAdvantage, scope="rollout"):
    """-sg[phi(w)] A log policy, log phi = lambda + k log w - lambda w, w the rollout's unnormalized ratio (VESPO).

    arXiv:2602.10693. phi(1) = 1. (k, lambda) are (2, 3) for A >= 0 and (3, 2) for A < 0, as in TRL 1.16.
    """

    k_positive: NonNegative = 2.0
    """k where A >= 0: the larger, the less a rollout counts that became less likely."""
    lambda_positive: NonNegative = 3.0
    """lambda where A >= 0: the larger, the less a rollout counts that became more likely."""
    k_negative: NonNegative = 3.0
    """k where A < 0."""
    lambda_negative: NonNegative = 2.0
    """lambda where A < 0."""
    sampler: bool = False
    """Multiply old / sampler into w (instead of a RolloutCorrection weight); needs Algorithm.old = "reread"."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (LOGPROBS, OLD_LOGPROBS, ROLLOUT_LOGPROBS) if self.sampler else (LOGPROBS, OLD_LOGPROBS)

    @property
    def at_first_update(self) -> str | None:
        return None if self.sampler else PLAIN

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask, advantages = batch.rollouts.action_mask, batch.advantages
        difference = log_ratio(readings, mask)
        smallest = math.log(1e-8)
        log_w = difference.detach().sum(1, keepdim=True)
        if self.sampler:
            gap = readings[OLD_LOGPROBS] - readings[ROLLOUT_LOGPROBS]
            gap = torch.where(mask & ~gap.isnan(), gap, 0.0).clamp(smallest, LOG_RATIO_BOUND)
            log_w = log_w + gap.sum(1, keepdim=True)
        log_w = log_w.clamp(smallest, LOG_RATIO_BOUND)
        gains = advantages >= 0
        k = torch.where(gains, torch.full_like(advantages, self.k_positive), self.k_negative)
        lam = torch.where(gains, torch.full_like(advantages, self.lambda_positive), self.lambda_negative)
        phi = (lam + k * log_w - lam * log_w.exp()).exp()
        values = -phi * advantages * actions_only(readings[LOGPROBS], mask)
        return values, {"policy/phi": phi, **ratio_metrics(difference)}


@dataclass(frozen=True)
class Dppo(Clips, ProportionalToAdvantage, clips="probability"):
    """-sg[min(ratio, truncate)] A log policy where |policy - old| in probability stays within bounds, else 0 (DPPO-TV).

    arXiv:2602.04879. Actions with A > 0 stop training once their probability has risen by more than `high`, those with A <= 0
    once it has fallen by more than `low`. Not implemented: the divergences over the full vocabulary and the binary-KL variant.
    """

    low: NonNegative = 0.2
    """Fall in an action's probability after which A <= 0 stops training it."""
    high: NonNegative = 0.2
    """Rise in an action's probability after which A > 0 stops training it."""
    truncate: Positive = 20.0
    """Largest ratio that the gradient is multiplied by."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask, advantages = batch.rollouts.action_mask, batch.advantages
        difference = log_ratio(readings, mask)
        logprobs = actions_only(readings[LOGPROBS], mask)
        rise = logprobs.detach().exp() - actions_only(readings[OLD_LOGPROBS], mask).exp()
        trusted = torch.where(advantages > 0, rise <= self.high, rise >= -self.low)
        weight = difference.detach().exp().clamp(max=self.truncate) * trusted
        return -weight * advantages * logprobs, {"policy/clip_frac": (~trusted).to(weight.dtype), **ratio_metrics(difference)}


@dataclass(frozen=True)
class Dro(Surrogate):
    """-(A log policy - beta / 2 (log ratio)^2): a quadratic pull towards the old policy (DRO, arXiv:2405.19107).

    As in verl, action by action with a group advantage; the paper's learned value function is not implemented. Of whole rows it
    is the mirror descent of Kimi k1.5 (arXiv:2501.12599), with the aggregation SequenceSum.
    """

    beta: NonNegative = 0.5
    """Strength of the pull, per nat squared of log ratio."""
    whole: bool = False
    """The square is of the row's whole log ratio, the sum over its actions, which its actions share."""

    @property
    def scope(self) -> Scope:
        return "rollout" if self.whole else "action"

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        difference = log_ratio(readings, mask)
        square = difference**2
        if self.whole:
            square = difference.sum(1, keepdim=True) ** 2 / mask.sum(1, keepdim=True).clamp(min=1) * mask
        values = -(batch.advantages * actions_only(readings[LOGPROBS], mask) - self.beta / 2 * square)
        return values, ratio_metrics(difference)


def rows_from_outside(batch: Batch) -> Bool[Tensor, "n 1"]:
    """True for rows of the role `injected`."""
    return torch.tensor([sample.role == "injected" for _, sample in batch.rollouts.samples()], dtype=torch.bool)[:, None]


@dataclass(frozen=True)
class WithRefinements(Clip):
    """-A p / (p + gamma) on injected rows, p the policy's probability; -A ratio on others, unclipped (Critique-GRPO).

    arXiv:2506.03106. The gradient of an action is largest at p = gamma and small for rare ones. With `clipped` the other rows are
    clipped as in Clip.
    """

    gamma: NonNegative = 0.1
    """Where the gradient of an injected action is largest, a probability; 0 would train none."""
    clipped: bool = False
    """True: the policy's own rows are clipped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.clipped and (self.low, self.high, self.delta, self.dual) != (Clip.low, Clip.high, None, None):
            raise ValueError("WithRefinements clips nothing: leave low, high, delta and dual out, or set clipped = true")

    @property
    def clip_range(self) -> ClipRange:
        return super().clip_range if self.clipped else ClipRange(math.inf, math.inf, self.level)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        if self.clipped:
            own, metrics = super().__call__(readings, batch)
        else:
            difference = log_ratio(readings, mask, self.level)
            own, metrics = -batch.advantages * difference.exp(), ratio_metrics(difference)
        p = actions_only(readings[LOGPROBS], mask).exp()
        given = rows_from_outside(batch).to(p.device)
        return torch.where(given, -batch.advantages * p / (p + self.gamma), own), metrics


@dataclass(frozen=True)
class WithImitation(Clip):
    """-A log policy on injected rows, Clip on others: an expert's answer is imitated as far as its advantage says (AHPO).

    arXiv:2510.08540.
    """

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        own, metrics = super().__call__(readings, batch)
        logprobs = actions_only(readings[LOGPROBS], batch.rollouts.action_mask)
        return torch.where(rows_from_outside(batch).to(own.device), -batch.advantages * logprobs, own), metrics


@dataclass(frozen=True)
class EvenStart(Clips, ProportionalToAdvantage, level="rollout", at_first_update=None):
    """Clip with one ratio per rollout, as if both beginnings had been drawn: the first token's old log p is that of its share.

    AdaptThink, arXiv:2505.13417, for groups of the planner ThinkOrNot: a beginning that has become rarer than half counts less.
    """

    low: Share = 0.2
    """The ratio counts as at least 1 - low."""
    high: NonNegative = 0.2
    """The ratio counts as at most 1 + high."""
    share: Annotated[float, Range(above=0, below=1)] = 0.5
    """How likely the first half's beginning counts as; the other's is 1 - share."""

    planners = ("ThinkOrNot",)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask, old = batch.rollouts.action_mask, readings[OLD_LOGPROBS]
        short = (part_numbers(batch.rollouts, 2) == 0).to(mask.device)[:, None]
        drawn = torch.where(short, math.log(self.share), math.log(1 - self.share)).to(old)
        is_first = mask & (mask.cumsum(1) == 1)
        return Clip(self.low, self.high, "rollout")({**readings, OLD_LOGPROBS: torch.where(is_first, drawn, old)}, batch)


Actions = Float[Tensor, "n t"]


def clip_between(difference: Actions, advantages: Actions, least: Actions, most: Actions) -> Values:
    """-min(ratio A, clip(ratio, least, most) A) with bounds per action, and its metrics."""
    ratio = difference.exp()
    plain, held = -advantages * ratio, -advantages * torch.minimum(torch.maximum(ratio, least), most)
    return torch.maximum(plain, held), {"policy/clip_frac": (held > plain).to(ratio), **ratio_metrics(difference)}


@dataclass(frozen=True)
class MovingClip(Clips, ProportionalToAdvantage, reads=(LOGPROBS, OLD_LOGPROBS, START_LOGPROBS)):
    """-min(ratio A, clip(ratio, c - low, c + high) A), c = policy at the step's start / old (ReMix, arXiv:2507.06892).

    For rows sampled in this step c is 1 and this is PPO's clip; replayed rows may move just as far, but from where the step found
    them. The paper's range was not found: 0.2.
    """

    low: Share = 0.2
    """The ratio counts as at least c - low."""
    high: NonNegative = 0.2
    """The ratio counts as at most c + high."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        start = {LOGPROBS: readings[START_LOGPROBS], OLD_LOGPROBS: readings[OLD_LOGPROBS]}
        centre = log_ratio(start, mask).exp()
        return clip_between(log_ratio(readings, mask), batch.advantages, centre - self.low, centre + self.high)


@dataclass(frozen=True)
class EntropyClip(Clips, ProportionalToAdvantage, reads=(LOGPROBS, OLD_LOGPROBS, ENTROPY), scope="batch", at_first_update=None):
    """PPO's clip with high (1 + u) where u > 0 and low (1 - u) where u <= 0, A (1 + u) outside of the inner range (HAPO).

    HAPO, arXiv:2509.16591, code starriver030515/HAPO. u in [-1, 1] is the distance
    of an action's log entropy from the minibatch's quantile `pivot`. A becomes A (1 + u) where u > 0 and the ratio has left
    half of that range, and where u <= 0 and it has not. `sign = "code"`: the released code makes u positive
    everywhere, so that its rule for certain actions never acts. Its temperatures are the planner ByDoubt.
    """

    low: Share = 0.2
    """The ratio counts as at least 1 - low, or less where the policy is certain."""
    high: NonNegative = 0.2
    """The ratio counts as at most 1 + high, or more where the policy is uncertain."""
    pivot: Annotated[float, Range(above=0, below=1)] = 0.8
    """The quantile of log entropies above which an action is uncertain."""
    widen: NonNegative = 1.0
    """How strongly the bounds follow u."""
    redistribute: NonNegative = 1.0
    """How strongly advantages follow u."""
    dual: Annotated[float, Range(above=1)] | None = 10.0
    """For A < 0 the value is at most -dual A."""
    sign: Literal["paper", "code"] = "paper"
    """code: u as the released code computes it."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        u = uncertainty(readings[ENTROPY], mask, self.pivot, self.sign).size
        difference = log_ratio(readings, mask)
        advantages = self.redistribution(batch.advantages, difference.detach().exp(), u)
        low, high = self.bounds(u)
        values, metrics = clip_between(difference, advantages, 1 - low, 1 + high)
        if self.dual is not None:
            values = torch.where(advantages < 0, torch.minimum(values, -self.dual * advantages), values)
        return values, {**metrics, "policy/entropy": actions_only(readings[ENTROPY].detach(), mask)}

    def bounds(self, u: Actions) -> tuple[Actions, Actions]:
        """How far below and above 1 the ratio of every action counts."""
        wide = self.widen * u
        low = torch.where(u > 0, torch.full_like(u, self.low), self.low * (1 - wide)).clamp(max=1)
        return low, torch.where(u > 0, self.high * (1 + wide), torch.full_like(u, self.high))

    def redistribution(self, advantages: Actions, ratio: Actions, u: Actions) -> Actions:
        """The advantages, times 1 + redistribute u for uncertain actions that moved and certain ones that did not."""
        low, high = self.bounds(u)
        inside = (ratio >= 1 - low / 2) & (ratio <= 1 + high / 2)
        chosen = torch.where(u > 0, ~inside, inside)
        return torch.where(chosen, advantages * (1 + self.redistribute * u), advantages)


class OfTheMinibatch(Surrogate, scope="batch"):
    """Which actions are held back depends on all the others in the minibatch, so a policy may not cut it."""


@dataclass(frozen=True)
class KlCov(OfTheMinibatch):
    """-ratio A + [action is among the top `fraction` by covariance] coef |log ratio| (KL-Cov, arXiv:2505.22617).

    No clip. At least one action of the minibatch is held back.
    """

    fraction: Share = 2e-4
    """Share of the minibatch's actions that are held back."""
    coef: NonNegative = 1.0
    """Penalty of a held action per nat of |log ratio|."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        difference = log_ratio(readings, mask)
        num_held = max(1, int(self.fraction * int(mask.sum())))
        flat = torch.where(mask, covariance(readings, batch), -torch.inf).flatten()
        held = torch.zeros_like(flat)
        held[flat.topk(min(num_held, len(flat))).indices] = 1
        held = held.view_as(difference) * mask
        values = -batch.advantages * difference.exp() + self.coef * held * difference.abs()
        return values, {"policy/clip_frac": held, **ratio_metrics(difference)}


@dataclass(frozen=True)
class ClipCov(OfTheMinibatch, Clips, at_first_update=None):
    """PPO's clip, and no gradient for a random `fraction` of actions with low_cov < covariance < high_cov.

    Clip-Cov (arXiv:2505.22617). Actions the clip already stopped are not drawn; at least one of the others is, if any
    is in the range. The draw is seeded, so the same minibatch always gives the same loss.
    """

    fraction: Share = 2e-4
    """Share of the minibatch's actions that get no gradient, drawn among the candidates."""
    low_cov: Number = 1.0
    """Covariance, in advantage times nats, above which an action is a candidate."""
    high_cov: Number = 5.0
    """Covariance up to which it is one."""
    low: Annotated[float, Range(0, 1)] = 0.2
    """PPO's clip: the ratio counts as at least 1 - low."""
    high: NonNegative = 0.2
    """PPO's clip: the ratio counts as at most 1 + high."""
    seed: Seed = 0
    """Seed of the draw."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        values, metrics = Clip(self.low, self.high)(readings, batch)
        clipped = metrics["policy/clip_frac"] > 0
        cov = covariance(readings, batch)
        candidates = (mask & ~clipped & (cov > self.low_cov) & (cov < self.high_cov)).flatten().nonzero()[:, 0]
        order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(self.seed)).to(candidates.device)
        chosen = candidates[order[: max(1, int(self.fraction * int(mask.sum())))]]
        held = torch.zeros_like(cov).flatten()
        held[chosen] = 1
        held = held.view_as(cov)
        return values * (1 - held), {**metrics, "policy/clip_frac": clipped + held}


def covariance(readings: Mapping[Reading, Tensor], batch: Batch) -> Float[Tensor, "n t"]:
    """(A - mean A) (log policy - its mean), means over the actions of the minibatch; detached."""
    mask, logprobs = batch.rollouts.action_mask, readings[LOGPROBS].detach()
    return (batch.advantages - masked_mean(batch.advantages, mask)) * (logprobs - masked_mean(logprobs, mask))
