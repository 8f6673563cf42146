"""How much a teacher's word counts."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.views import SEEN
from mmrl.core.hooks import PartHooks
from mmrl.core.readings import TAUGHT
from mmrl.core.types import Batch, Counts, Reading, Scope
from mmrl.runtime.ranges import NonNegative


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
