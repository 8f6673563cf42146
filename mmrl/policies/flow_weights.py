"""Trainable weights and what is kept beside them."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from mmrl.core.protocols import State
from mmrl.policies.shadows import Shadow, put, whole
from mmrl.policies.sharding import reshard

SHADOWS = frozenset({"ref", "ema"})
Decay = float | Callable[[int], float]
"""How much of an average stays at an update: a number, or one that depends on how many updates there were before."""


class Weights:
    """The trainable weights of a module; `ref` and `ema` start as copies of them.

    Raises:
        ValueError: shadows of another name.
    """

    def __init__(self, module: nn.Module, shadows: Iterable[str], ema_decay: Decay) -> None:
        wanted = sorted(set(shadows))
        if set(wanted) - SHADOWS:
            raise ValueError(f"a policy keeps the shadows {sorted(SHADOWS)}, not {sorted(set(wanted) - SHADOWS)}")
        self.module = module
        self.named = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        self.ema_decay = ema_decay
        self.num_updates = 0
        self.shadows = {name: Shadow.of(list(self.named.values())) for name in wanted}

    def worn(self, model: str) -> AbstractContextManager[Any]:
        """Inside, the module holds the weights of this name."""
        if model == "policy":
            return nullcontext()
        reshard(self.module)
        return self.shadows[model].worn()

    def follow(self) -> None:
        """There was an update: the average follows it."""
        if "ema" in self.shadows:
            decay = self.ema_decay(self.num_updates) if callable(self.ema_decay) else self.ema_decay
            replace(self.shadows["ema"], decay=decay).follow()
        self.num_updates += 1

    def state_dict(self) -> State:
        """Whole and on the CPU. With sharded weights every process must call it."""
        shadows = {
            name: {key: whole(value) for key, value in zip(self.named, shadow.weights, strict=True)}
            for name, shadow in self.shadows.items()
        }
        weights = {name: whole(weight) for name, weight in self.named.items()}
        return {"weights": weights, "shadows": shadows, "num_updates": self.num_updates}

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when the state belongs to other weights or shadows."""
        for what, own in (("weights", set(self.named)), ("shadows", set(self.shadows))):
            if set(state[what]) != own:
                raise ValueError(
                    f"the saved state has other {what} than this policy ({sorted(set(state[what]) ^ own)[:3]} ...): "
                    "resume with the policy settings and the algorithm of the saved run"
                )
        for name, weight in self.named.items():
            put(weight, state["weights"][name])
        for name, shadow in self.shadows.items():
            for key, weight in zip(self.named, shadow.weights, strict=True):
                put(weight, state["shadows"][name][key])
        self.num_updates = state["num_updates"]


def wrapped(net: nn.Module, parameters: list[nn.Parameter], accelerator: Any) -> nn.Module:
    """The module as accelerate trains it on its processes."""
    if not is_sharded(accelerator):
        return accelerator.prepare(net)
    # accelerate shards a model only together with an optimizer; the real one is built on the sharded weights.
    return accelerator.prepare(net, torch.optim.SGD(parameters))[0]


def is_sharded(accelerator: Any) -> bool:
    from accelerate.utils import DistributedType

    return accelerator.distributed_type == DistributedType.FSDP


def most_of(accelerator: Any, value: int) -> int:
    """The largest value of any process."""
    return int(accelerator.gather(torch.tensor([value], device=accelerator.device)).max())
