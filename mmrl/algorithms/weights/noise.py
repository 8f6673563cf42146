"""Weights of denoising steps by the noise drawn at them. `importance` slot of an Algorithm."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.core.readings import DT, STD
from mmrl.core.types import Batch, Counts, Reading, Scope


class OfTheStep:
    """The declarations of weights that know the schedule only."""

    @property
    def scope(self) -> Scope:
        return "action"


@dataclass(frozen=True)
class NoiseLevel(OfTheStep):
    """S_i / mean of S over the steps that the schedule trains: noisy early steps count more (TempFlow-GRPO, arXiv:2508.04324).

    The mean is taken, not the paper's constants (2.25 for SD3, 1.73 for FLUX), which are 1 / mean to three digits.
    """

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (STD,)

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        std = batch.frozen[STD]
        trained = std > 0
        mean = std.sum(1, keepdim=True) / trained.sum(1, keepdim=True).clamp(min=1)
        return torch.where(trained, std / mean.clamp(min=1e-12), 0.0)


@dataclass(frozen=True)
class InverseStep(OfTheStep):
    """1 / (sigma - sigma'): with normalized ratios every step pulls equally at the velocity (GRPO-Guard, arXiv:2510.22319)."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (DT,)

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        return 1 / batch.frozen[DT].clamp(min=1e-12)
