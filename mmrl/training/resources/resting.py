"""Optimizer state that lies in the machine's memory but for the time of a step, and leaves a GPU to sampling and gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from mmrl.core.ranks import Ranks

Rest = Literal["device", "cpu"]


def check_rest(rest: Rest, ranks: Ranks) -> None:
    """Refuse to move what is spread over processes.

    Raises:
        ValueError: the weights are sharded, or a library owns the optimizer's step.
    """
    if rest == "cpu" and (ranks.is_sharded or ranks.engine is not None):
        raise ValueError(
            "optimizer.rest is 'cpu', but FSDP or DeepSpeed keeps a part of the state on each GPU: leave optimizer.rest out, or "
            "start with configs/accelerate/ddp.yaml"
        )


@contextmanager
def woken(optimizer: torch.optim.Optimizer, rest: Rest) -> Iterator[None]:
    """A block in which the state is where its weights are."""
    if rest == "cpu":
        move(optimizer, None)
    yield
    put_to_rest(optimizer, rest)


def put_to_rest(optimizer: torch.optim.Optimizer, rest: Rest) -> None:
    """Move the state to where it rests; on its device nothing happens."""
    if rest == "cpu":
        move(optimizer, torch.device("cpu"))


def move(optimizer: torch.optim.Optimizer, to: torch.device | None) -> None:
    """Move what is kept for every number of a weight; None: to its weight. Counts of steps stay, for kernels want them there."""
    states: dict[Tensor, dict[str, Any]] = optimizer.state
    for weight, own in states.items():
        for name, x in own.items():
            if isinstance(x, Tensor) and x.ndim > 0 and x.device != (to or weight.device):
                own[name] = x.to(to or weight.device)
