"""Terms for samples that other weights drew: which of them still teach, and what holds the policy near those weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.algorithms.notes import Notes
from mmrl.algorithms.objectives.surrogates import Values
from mmrl.algorithms.objectives.terms import OfLevel, OldPenalty, Surrogate, actions_only, log_ratio, ratio_metrics
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS
from mmrl.core.types import Batch, ClipRange, Reading, Scope
from mmrl.runtime.ranges import NonNegative, Positive, Range, Share, With


@dataclass(frozen=True)
class Rec(Surrogate):
    """-A w log policy where the ratio is in range, 0 elsewhere (REC, group-relative REINFORCE off-policy, arXiv:2509.24203).

    Ranges: `two_sides` [1 - low, 1 + high]; `one_side` for A >= 0 only ratios up to 1 + high, for A <= 0 only ratios from 1 -
    low; `ring` two_sides, and in addition ratios up to 1 - outer_low for A >= 0 or from 1 + outer_high for A <= 0; `rollout` is
    one_side with the ratio of the whole rollout. Unlike PPO's clip the gradient is that of log policy, not of the ratio.
    """

    kept: Literal["all", "two_sides", "one_side", "ring", "rollout"] = "one_side"
    """Which ratios train: all, or a range as above."""
    weight: Literal["one", "ratio", "advantage"] = "one"
    """w: 1, policy / old without gradient, or exp(A / temperature), which is not normalized."""
    low: Share = 0.2
    """The range begins at 1 - low."""
    high: NonNegative = 0.2
    """The range ends at 1 + high."""
    outer_low: Annotated[Share, With("kept", "ring")] = 0.6
    """ring: ratios up to 1 - outer_low train again where A >= 0."""
    outer_high: Annotated[NonNegative, With("kept", "ring")] = 2.0
    """ring: ratios from 1 + outer_high on train again where A <= 0."""
    temperature: Annotated[Positive, With("weight", "advantage")] = 1.0
    """Of exp(A / temperature), in units of the advantage."""

    @property
    def scope(self) -> Scope:
        return "rollout" if self.kept == "rollout" else "action"

    @property
    def clip_range(self) -> ClipRange:
        return ClipRange(self.low, self.high, "rollout" if self.kept == "rollout" else "action")

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask, advantages = batch.rollouts.action_mask, batch.advantages
        difference = log_ratio(readings, mask, "rollout" if self.kept == "rollout" else "action")
        ratio = difference.detach().exp()
        kept = self.in_range(ratio, advantages)
        weights = {"one": torch.ones_like(ratio), "ratio": ratio, "advantage": (advantages / self.temperature).exp()}
        values = -advantages * weights[self.weight] * kept * actions_only(readings[LOGPROBS], mask)
        return values, {"policy/clip_frac": (~kept).to(values.dtype), **ratio_metrics(difference)}

    def in_range(self, ratio: Float[Tensor, "n t"], advantages: Float[Tensor, "n t"]) -> Bool[Tensor, "n t"]:
        """Which actions train."""
        up, down = advantages >= 0, advantages <= 0
        if self.kept == "all":
            return torch.ones_like(ratio, dtype=torch.bool)
        if self.kept in ("one_side", "rollout"):
            return (up & (ratio <= 1 + self.high)) | (down & (ratio >= 1 - self.low))
        inside = (ratio >= 1 - self.low) & (ratio <= 1 + self.high)
        if self.kept == "two_sides":
            return inside
        return inside | (up & (ratio <= 1 - self.outer_low)) | (down & (ratio >= 1 + self.outer_high))


@dataclass(frozen=True)
class OldKL(OldPenalty):
    """(log policy - log old)^2, or -log policy (`forward`): what holds REC near the weights that sampled (arXiv:2509.24203).

    The term's coefficient is that of the paper's regularizer; as in the paper's code k2 has no factor 1/2.
    """

    form: Literal["k2", "forward"] = "k2"
    """k2: the squared log ratio. forward: minus the log-probability."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (LOGPROBS, OLD_LOGPROBS) if self.form == "k2" else (LOGPROBS,)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        if self.form == "forward":
            return -actions_only(readings[LOGPROBS], mask), {}
        return actions_only(readings[LOGPROBS] - readings[OLD_LOGPROBS], mask) ** 2, {}


@dataclass(frozen=True)
class VarianceBound(Notes, Surrogate):
    """-ratio A + multiplier (ratio - 1)^2: the second moment of the ratio about 1 is penalized (R2VPO, arXiv:2601.03320).

    Taken from two re-implementations that agree. With a rate the multiplier moves by dual ascent after every step, m <- max(0, m
    + rate (mean (ratio - 1)^2 - bound)); rate and bound are ours, since the paper's were not found.
    """

    multiplier: NonNegative = 0.04
    """Weight of the squared distance of a ratio from 1, at the beginning of training."""
    bound: Annotated[NonNegative, With("rate")] = 0.01
    """The mean squared distance that is allowed."""
    rate: NonNegative = 0.0
    """Step size of the multiplier; 0: it stays constant."""

    @property
    def current(self) -> float:
        """The current multiplier."""
        return self.notes.get("multiplier", self.multiplier)

    def adapt(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.rate:
            self.notes["multiplier"] = dual_step(self.current, metrics["policy/ratio_variance"], self.bound, self.rate)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        difference = log_ratio(readings, batch.rollouts.action_mask)
        ratio = difference.exp()
        values = -ratio * batch.advantages + self.current * (ratio - 1) ** 2
        return values, {"policy/ratio_variance": ((ratio - 1) ** 2).detach(), **ratio_metrics(difference)}


def dual_step(multiplier: float, variance: float, bound: float, rate: float) -> float:
    """max(0, multiplier + rate (variance - bound)): how R2VPO's multiplier follows the mean (ratio - 1)^2 of an update."""
    return max(0.0, multiplier + rate * (variance - bound))


@dataclass(frozen=True)
class KeepLikely(OldPenalty, scope="rollout"):
    """[sum_t (log old - log policy) > 0] max(0, log old - log policy) in rows with A >= 0: keeps them from getting rarer (LLDS).

    LLDS, arXiv:2512.04220v2, eq. 10; for answers of one turn the gate is that of eq. 4. The gate has no gradient. The paper
    divides by the actions of rows with A >= 0, here the run's aggregation divides: a coefficient here is the paper's times the
    share of these actions. It is 0 at a step's first update.
    """

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        loss = actions_only(readings[OLD_LOGPROBS] - readings[LOGPROBS], mask)
        rarer = self.gate(loss)
        good = torch.where(mask, batch.advantages, 0.0).sum(1) >= 0
        values = loss.clamp(min=0) * (rarer & good)[:, None]
        return values, {"policy/rarer": actions_only((rarer & good)[:, None].to(values).expand(mask.shape), mask)}

    def gate(self, loss: Float[Tensor, "n t"]) -> Bool[Tensor, " n"]:
        """Which rows became less likely as a whole."""
        return loss.detach().sum(1) > 0


@dataclass(frozen=True)
class NegativeAwareText(OfLevel, Surrogate):
    """-w log ratio for right answers, -w log max((1 - q ratio) / (1 - q), floor) for wrong ones; q the group's success rate.

    NFT for text, arXiv:2505.18116 (not DiffusionNFT): wrong answers train the model of right answers through its complement. w by
    `normalize`: none 1, linear 1 - q, deviation sqrt((1 - q) / q), under which the first update is GRPO's. The floor is
    straight-through: the value stops there, and the gradient passes as if at the floor. q is read from the advantage: right and
    wrong answers must have A = 1 - q and A = -q, which RightOrWrong gives. The paper divides by 1000 actions: take the
    aggregation FixedLength.
    """

    normalize: Literal["none", "linear", "deviation"] = "deviation"
    """How much a group counts by its success rate q: 1, 1 - q or sqrt((1 - q) / q)."""
    floor: Positive = 1.0
    """Lower bound of (1 - q ratio) / (1 - q) for wrong answers; at the authors' 1 no wrong action trains beyond ratio 1."""
    level: Literal["action", "rollout"] = "action"
    """rollout: the ratio of the whole answer, the exponential of its summed log ratio, at most e^10."""
    rates: tuple[Annotated[float, Range(above=0, below=1)], Annotated[float, Range(above=0, below=1)]] = (0.02, 0.98)
    """q is clamped to this range."""

    advantages = ("RightOrWrong",)

    @property
    def at_first_update(self) -> str | None:
        return "REINFORCE with its own weight" if self.normalize != "deviation" else "GRPO's gradient"

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask, advantages = batch.rollouts.action_mask, batch.advantages
        difference = log_ratio(readings, mask)
        if self.level == "rollout":
            total = actions_only(readings[LOGPROBS] - readings[OLD_LOGPROBS], mask).sum(1, keepdim=True)
            difference = total.clamp(max=10).expand_as(difference)
        right = advantages > 0
        rate = torch.where(right, 1 - advantages, -advantages).clamp(*self.rates)
        proxy = (1 - rate * difference.exp()) / (1 - rate)
        held = proxy.detach().clamp(min=self.floor)
        values = -torch.where(right, difference, (proxy - proxy.detach() + held).log())
        weight = {"none": torch.ones_like(rate), "linear": 1 - rate, "deviation": ((1 - rate) / rate).sqrt()}[self.normalize]
        values = actions_only(torch.where(advantages == 0, 0.0, weight * values), mask)
        stopped = (~right & (proxy < self.floor)).to(values)
        return values, {"policy/clip_frac": stopped, **ratio_metrics(difference)}
