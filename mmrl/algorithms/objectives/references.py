"""Penalties that use two references, or weight one by how well a rollout did."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from mmrl.algorithms.notes import Notes
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Values
from mmrl.algorithms.objectives.terms import Penalty, actions_only
from mmrl.core.readings import MEAN_REWARD, PREVIOUS_LOGPROBS, REF_LOGPROBS, REWARD
from mmrl.core.types import Batch, Reading, Scope
from mmrl.runtime.ranges import Large, LargeOrNone, NonNegative, Share


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
