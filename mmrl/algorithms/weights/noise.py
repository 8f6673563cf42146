"""Weights of denoising steps by the noise drawn at them. `importance` slot of an Algorithm."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.core.hooks import PartHooks
from mmrl.core.readings import DT, PULL, STD
from mmrl.core.types import Batch, Counts, Reading, Scope


class OfTheStep(PartHooks):
    """A weight that knows the schedule only."""

    reads: tuple[Reading, ...] = ()
    scope: Scope = "action"


@dataclass(frozen=True)
class NoiseLevel(OfTheStep):
    """S_i / mean of S over the steps that the schedule trains: noisy early steps count more (TempFlow-GRPO, arXiv:2508.04324).

    The mean is taken, not the paper's constants (2.25 for SD3, 1.73 for FLUX), which are 1 / mean to three digits.
    """

    reads = (STD,)

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        std = batch.frozen[STD]
        trained = std > 0
        mean = std.sum(1, keepdim=True) / trained.sum(1, keepdim=True).clamp(min=1)
        return torch.where(trained, std / mean.clamp(min=1e-12), 0.0)


@dataclass(frozen=True)
class InverseStep(OfTheStep):
    """1 / (sigma - sigma'): with normalized ratios every step pulls equally at the velocity (GRPO-Guard, arXiv:2510.22319)."""

    reads = (DT,)

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        return 1 / batch.frozen[DT].clamp(min=1e-12)


@dataclass(frozen=True)
class EqualGradient(OfTheStep):
    """w / mean of w, w = 1 / |d log p / d velocity| at a noise of 1: all steps pull equally (Flash-GRPO, arXiv:2605.15980).

    With Flow-SDE, Dance-SDE and Wan w = 1 / (sqrt(dt) / s + s sqrt(dt) (1 - sigma) / (2 sigma)); 3/2 of it is LongCat-Video's
    (arXiv:2510.22200). It never touches a KL term.
    """

    normalize: Literal["pool", "batch"] = "pool"
    """The mean is over the steps that the schedule may train, or (the authors' script) over all trained actions of the batch."""

    reads = (PULL,)

    @property
    def pools(self) -> tuple[Reading, ...]:
        return (PULL,) if self.normalize == "batch" else ()

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        pull = batch.frozen[PULL]
        trained = pull > 0
        weight = torch.where(trained, 1 / torch.where(trained, pull, 1.0), 0.0)
        mean = weight.sum(1, keepdim=True) / trained.sum(1, keepdim=True).clamp(min=1)
        if self.normalize == "batch":
            mean = (1 / counts.pooled[PULL]).mean()
        return torch.where(trained, weight / mean, 0.0)
