"""The rounding of a flow policy's network: log-densities of transitions are compared far below any clip range."""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from mmrl.core.types import Rollouts

BOUND = 1e-6
"""Largest |log ratio|: clip ranges are 1e-4 and less, and bfloat16 needs equal forwards (policy.equal_forwards)."""


@dataclass(frozen=True)
class FlowRounding:
    """How the network of a FlowPolicy rounds: too little to be measured."""

    bound: float = BOUND
    unit: float = 2.0**-24
    depth: int = 1
    is_coarse: bool = False

    def readings(self, rollouts: Rollouts) -> Iterator[Float[Tensor, "n t"]]:
        """Nothing."""
        yield from ()
