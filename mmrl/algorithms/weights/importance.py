"""How much an action's credit counts, by what the policy, or its teacher, knew. `importance` slot of an Algorithm."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.views import SEEN
from mmrl.algorithms.weights.aggregate import PlainWeight
from mmrl.core.hooks import PartHooks
from mmrl.core.readings import OLD_ENTROPY, OLD_LOGPROBS, ROLLOUT_LOGPROBS, TAUGHT
from mmrl.core.types import Batch, Counts, Reading, Scope
from mmrl.runtime.ranges import NonNegative, Number, Positive, PositiveShare
from mmrl.runtime.tensors import masked_mean


@dataclass(frozen=True)
class HighEntropy(PlainWeight):
    """1 for the `quantile` of actions with the highest entropy, 0 for the others ("80/20", arXiv:2506.01939).

    The threshold is taken over the actions of the minibatch, at the weights that sampled (TRL: at the current ones, again in
    every pass). Shares stay those of all actions, so the loss shrinks with the quantile.
    """

    quantile: PositiveShare = 0.2
    """The part that is kept, in (0, 1]."""

    reads = pools = (OLD_ENTROPY,)
    scope = "batch"

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        entropy, mask = batch.frozen[OLD_ENTROPY], batch.rollouts.action_mask
        if not bool(mask.any()):
            return torch.zeros_like(batch.advantages)
        threshold = quantile(counts.pooled.get(OLD_ENTROPY, entropy[mask]), 1 - self.quantile)
        return ((entropy >= threshold) & mask).to(batch.advantages.dtype)


@dataclass(frozen=True)
class RolloutCorrection(PartHooks):
    """old / sampler, for samplers whose probabilities differ from the trainer's (TIS and MIS; TRL 1.16's default mode).

    Per action, or multiplied over the rollout (TRL's product, not ms-swift's geometric mean). `truncate` clamps the ratio
    into [low, high]; `mask` puts 0 where it leaves them. An action whose sampler log-probability is NaN is not corrected.
    Needs Algorithm.old = "reread", else old is the sampler and the ratio is always 1.
    """

    mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "sequence_mask"
    """token: a ratio per action; sequence: their product over the rollout. truncate: into [low, high]; mask: 0 outside."""
    low: NonNegative | None = None
    """Least ratio; None: no bound."""
    high: Positive | None = 3.0
    """Largest ratio; None: no bound."""

    reads = (OLD_LOGPROBS, ROLLOUT_LOGPROBS)

    @property
    def scope(self) -> Scope:
        return "action" if self.mode.startswith("token") else "rollout"

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        log_ratio = sampler_gap(batch)
        if self.mode.startswith("sequence"):
            log_ratio = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
        ratio = log_ratio.exp()
        if self.low is None and self.high is None:
            return ratio
        if self.mode.endswith("truncate"):
            return ratio.clamp(self.low, self.high)
        too_low = ratio < self.low if self.low is not None else torch.zeros_like(ratio, dtype=torch.bool)
        too_high = ratio > self.high if self.high is not None else torch.zeros_like(ratio, dtype=torch.bool)
        return ratio.masked_fill(too_low | too_high, 0.0)


@dataclass(frozen=True)
class OffPolicyMask(PlainWeight):
    """0 for actions with A < 0 of rollouts where mean_t(log sampler - log old) > delta (OPSM, DeepSeek-V3.2, arXiv:2512.02556).

    What the policy has left behind must not be pushed further down. The gap is taken once, before the first update
    (TRL: against the moving weights, at every update); Algorithm.old must be "reread".
    """

    delta: Number = 0.5
    """In nats per action."""

    reads = (OLD_LOGPROBS, ROLLOUT_LOGPROBS)

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        gap = masked_mean(-sampler_gap(batch), batch.rollouts.action_mask, dim=1)
        left_behind = (gap > self.delta)[:, None] & (batch.advantages < 0)
        return 1.0 - left_behind.to(batch.advantages.dtype)


def sampler_gap(batch: Batch) -> Float[Tensor, "n t"]:
    """log old - log sampler where an action trains and the sampler said something, else 0."""
    gap = batch.frozen[OLD_LOGPROBS] - batch.frozen[ROLLOUT_LOGPROBS]
    return torch.where(batch.rollouts.action_mask & ~gap.isnan(), gap, 0.0)


def quantile(x: Float[Tensor, " m"], q: float) -> Tensor:
    """torch.quantile for any number of values; the original refuses more than 2^24."""
    ordered = x.sort().values
    position = q * (len(ordered) - 1)
    low = int(position)
    return torch.lerp(ordered[low], ordered[min(low + 1, len(ordered) - 1)], position - low)


@dataclass(frozen=True)
class SureTeacher(PartHooks):
    """exp(-beta H) over its mean in rows that a teacher has to itself, 1 elsewhere: H the entropy of the teacher's next token.

    SRPO, arXiv:2604.02288. The mean is over all such tokens of the minibatch, of all processes. Take FollowTeacher with
    weighed = true, the same model, and a view.
    """

    beta: NonNegative = 1.0
    """How much a teacher's doubt counts, per nat."""
    model: Literal["teacher", "ref", "ema"] = "ema"
    """Whose weights the teacher has."""

    @property
    def entropy(self) -> Reading:
        """The teacher's doubt."""
        return Reading("entropy", self.model, SEEN)

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (self.entropy, TAUGHT)

    @property
    def pools(self) -> tuple[Reading, ...]:
        return self.reads

    @property
    def scope(self) -> Scope:
        return "batch"

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        weight, taught = (-self.beta * batch.frozen[self.entropy]).exp(), batch.frozen[TAUGHT] > 0
        mask = batch.rollouts.action_mask
        entropy, theirs = (counts.pooled.get(reading, batch.frozen[reading][mask]) for reading in self.reads)
        mean = (-self.beta * entropy[theirs > 0]).exp().mean()
        return torch.where(taught, weight / mean, 1.0).to(batch.advantages.dtype)
