"""Penalties that keep the policy near its references, its entropy high, or its eyes open. Importance never touches them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.notes import Notes
from mmrl.algorithms.objectives.surrogates import Values
from mmrl.algorithms.objectives.terms import Penalty, actions_only, log_ratio
from mmrl.algorithms.views import MaskPatches
from mmrl.core.protocols import View
from mmrl.core.readings import (
    ENTROPY,
    LOGPROBS,
    MASKED_LOGPROBS,
    MEAN_REWARD,
    OLD_LOGPROBS,
    PREVIOUS_LOGPROBS,
    REF_LOGPROBS,
    REWARD,
)
from mmrl.core.types import Batch, Reading, Scope
from mmrl.runtime.ranges import Large, LargeOrNone, NonNegative, Positive, Share

KlKind = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]


@dataclass(frozen=True)
class ReferenceKL(Penalty):
    """An estimate of KL(policy || reference) from the sampled actions; k3 = exp(d) - d - 1, d = log ref - log policy.

    k1 = -d, whose gradient does not depend on the reference (useless as a loss), k2 = d^2 / 2, whose gradient is that of the KL,
    abs = |d|; "k1+" and "k3+" have the value of k1 or k3 and the gradient of k2 (verl).
    Clamps of peers: verl log_ratio_clamp=20 and value_clamp=10 for k3, Video-R1 log_ratio_clamp=10; TRL none.
    """

    estimator: KlKind = "k3"
    """Which estimate, in nats per action: one of the formulas above."""
    log_ratio_clamp: Positive | None = None
    """d is clamped to [-c, c]; no gradient beyond."""
    value_clamp: Positive | None = None
    """The estimate is clamped to [-c, c]; no gradient beyond."""
    ratio_correction: Literal["none", "action", "rollout"] = "none"
    """Multiply by the live policy / old ratio, because the actions were sampled from old (TRL 1.16's default)."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        both = (LOGPROBS, REF_LOGPROBS)
        return both if self.ratio_correction == "none" else (*both, OLD_LOGPROBS)

    @property
    def scope(self) -> Scope:
        return "rollout" if self.ratio_correction == "rollout" else "action"

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        mask = batch.rollouts.action_mask
        gap = actions_only(readings[REF_LOGPROBS] - readings[LOGPROBS], mask)
        kl = self._estimate(gap)
        if self.estimator.endswith("+"):
            k2 = gap**2 / 2
            kl = kl.detach() + k2 - k2.detach()
        metrics = {"policy/kl": kl.detach()}
        if self.ratio_correction != "none":
            kl = kl * log_ratio(readings, mask, self.ratio_correction).exp()
        return kl, metrics

    def _estimate(self, gap: Tensor) -> Tensor:
        d = gap if self.log_ratio_clamp is None else gap.clamp(-self.log_ratio_clamp, self.log_ratio_clamp)
        if self.estimator in ("k1", "k1+"):
            kl = -d
        elif self.estimator == "k2":
            kl = d**2 / 2
        elif self.estimator == "abs":
            kl = d.abs()
        else:
            kl = d.exp() - d - 1
        return kl if self.value_clamp is None else kl.clamp(-self.value_clamp, self.value_clamp)


@dataclass(frozen=True)
class Entropy(Penalty, reads=(ENTROPY,)):
    """-entropy of the policy at every action: a positive coefficient raises the entropy."""

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        entropy = actions_only(readings[ENTROPY], batch.rollouts.action_mask)
        return -entropy, {"policy/entropy": entropy.detach()}


@dataclass(frozen=True)
class Perception(Penalty, reads=(LOGPROBS, MASKED_LOGPROBS)):
    """-(exp(d) - d - 1), d = log old(y | masked pictures) - log policy(y | pictures): away from answers given unseen (PAPO).

    arXiv:2507.06448. Raises actions that the pictures make likelier, lowers those they make less likely.
    d is clamped to 20 and the value to 10, as in the paper's code; tokens beyond have no gradient. The masked
    reading is taken once per step, without gradient.
    """

    view: MaskPatches = field(default_factory=MaskPatches)
    """How the pictures are hidden in the reading that the policy is pushed away from."""

    @property
    def views(self) -> Mapping[str, View]:
        return {"masked": self.view}

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        gap = actions_only(readings[MASKED_LOGPROBS] - readings[LOGPROBS], batch.rollouts.action_mask).clamp(-20, 20)
        divergence = (gap.exp() - gap - 1).clamp(-10, 10)
        return -divergence, {"policy/perception": divergence.detach()}


@dataclass(frozen=True)
class Surprise(Penalty, reads=(LOGPROBS,)):
    """-log policy of the sampled actions: a positive coefficient makes the policy more certain (PAPO, arXiv:2507.06448).

    PAPO calls it an entropy loss; it is a one-sample estimate of the entropy, and its gradient is not the entropy's.
    """

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        surprise = -actions_only(readings[LOGPROBS], batch.rollouts.action_mask)
        return surprise, {"policy/surprise": surprise.detach()}


class OfDivergence(Penalty):
    """The declarations of terms that weigh a divergence from a reference."""

    kl: ReferenceKL

    @property
    def scope(self) -> Scope:
        return self.kl.scope


@dataclass(frozen=True)
class BetweenReferences(Notes, OfDivergence):
    """w KL(policy || base) + (1 - w) KL(policy || weights of the step before), w falling in steps (ReMix, arXiv:2507.06892).

    w(t) = max(1 - fall ceil(max(t - hold, 0) / every), least), t the training step. `previous` is the weights with which the step
    before began. After `switch` steps the policy at that point becomes the base, and only the base counts: set the planner's
    `until` to the same step. The paper's coefficient was not found.
    """

    kl: ReferenceKL = field(default_factory=ReferenceKL)
    """How a divergence is estimated."""
    hold: LargeOrNone = 50
    """Number of steps at the start in which only the base counts."""
    every: Large = 10
    """Steps between two decreases of w."""
    fall: Share = 0.1
    """How much w decreases each time."""
    least: Share = 0.5
    """w never falls below."""
    switch: LargeOrNone = 100
    """Step after which the policy becomes the base; 0: never. 50 to 100 in the paper, although w only falls from 51 on."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (*self.kl.reads, PREVIOUS_LOGPROBS)

    def adapt(self, step: int, metrics: Mapping[str, float]) -> None:
        self.notes["step"] = step

    @property
    def rebase_after(self) -> int:
        return self.switch

    def weight(self, step: int) -> float:
        """w at a training step."""
        if 0 < self.switch < step:
            return 1.0
        return max(1 - self.fall * math.ceil(max(step - self.hold, 0) / self.every), self.least)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        weight = self.weight(int(self.notes.get("step", 0)) + 1)
        base, metrics = self.kl(readings, batch)
        precedent, _ = self.kl({**readings, REF_LOGPROBS: readings[PREVIOUS_LOGPROBS]}, batch)
        return weight * base + (1 - weight) * precedent, {**metrics, "policy/kl_previous": precedent.detach()}


@dataclass(frozen=True)
class LooserWhereGood(OfDivergence):
    """(1 - gain (r - group mean)) KL(policy || reference): good rollouts may leave the reference further (HART's AP-GRPO).

    HART, arXiv:2602.23615. Rewards within 1 / gain of their group's mean keep the weight positive; beyond it is 0, where the
    paper's would be negative.
    """

    kl: ReferenceKL = field(default_factory=ReferenceKL)
    """How the divergence is estimated."""
    gain: NonNegative = 0.6
    """Per unit of reward; 0.6 is the paper's."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (*self.kl.reads, REWARD, MEAN_REWARD)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        kl, metrics = self.kl(readings, batch)
        weight = self.weight(readings[REWARD] - readings[MEAN_REWARD]).to(kl)
        return actions_only(weight * kl, batch.rollouts.action_mask), metrics

    def weight(self, lead: Tensor) -> Tensor:
        """The factor of the divergence, given how far a reward is above its group's mean."""
        return (1 - self.gain * lead).clamp(min=0)
