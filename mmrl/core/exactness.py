"""The promises of a policy about its own numbers: who draws its samples, and how far rounding alone moves a log-probability."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.core.types import Rollouts

TF32_UNIT = 2.0**-11
"""Half the spacing of the numbers that a GPU multiplies float32 matrices with, where TF32 is on."""


@runtime_checkable
class SamplesElsewhere(Protocol):
    """A policy whose samples another program may draw, with kernels and caches of its own."""

    @property
    def exact_sampler(self) -> bool:
        """Are the log-probabilities noted while sampling computed by the network that trains? An engine's are not."""
        ...


@runtime_checkable
class Rounding(Protocol):
    """How a policy's network rounds, for whoever compares two of its readings."""

    @property
    def bound(self) -> float:
        """Largest |log ratio| of two readings under the same weights, where nothing has to be measured."""
        ...

    @property
    def unit(self) -> float:
        """Relative error of one rounding: 2**-24 in float32, 2**-8 in bfloat16."""
        ...

    @property
    def depth(self) -> int:
        """Layers in which errors add up."""
        ...

    @property
    def is_coarse(self) -> bool:
        """Must be measured what rounding makes, since it is far more than `bound`?"""
        ...

    def readings(self, rollouts: Rollouts) -> Iterator[Float[Tensor, "n t"]]:
        """Log-probabilities of the same actions in two ways or more that are equal but for rounding, sampling's own among them.

        Every process makes the same forwards for as many rows.
        """
        ...


@runtime_checkable
class Rounded(Protocol):
    """A policy that knows how its network rounds."""

    @property
    def rounding(self) -> Rounding: ...


def unit_of(dtype: torch.dtype, device: torch.device) -> float:
    """Relative error of one rounding of a network that computes in this type on this device."""
    if dtype == torch.float32 and device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        return TF32_UNIT
    return torch.finfo(dtype).eps / 2
