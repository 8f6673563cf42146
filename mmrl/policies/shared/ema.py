"""Trainable weights and what is kept beside them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from mmrl.core.protocols import State
from mmrl.policies.shared.sharding import reshard
from mmrl.policies.shared.weights import Shadow, load_state, state_of

SHADOWS = frozenset({"ref", "ema"})
Decay = float | Callable[[int], float]
"""How much of an average stays at an update: a number, or one that depends on how many updates there were before."""


class Weights:
    """The trainable weights of a module; `ref` and `ema` start as copies of them.

    Raises:
        ValueError: shadows of another name.
    """

    def __init__(self, module: nn.Module, shadows: Iterable[str], ema_decay: Decay, sharded: bool = False) -> None:
        wanted = sorted(set(shadows))
        if set(wanted) - SHADOWS:
            raise ValueError(f"a policy keeps the shadows {sorted(SHADOWS)}, not {sorted(set(wanted) - SHADOWS)}")
        self.module, self.sharded = module, sharded
        self.adapter = [layer for layer in module.modules() if hasattr(layer, "lora_B")]
        self.named = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        self.ema_decay = ema_decay
        self.num_updates = 0
        self.shadows = {name: Shadow.of(list(self.named.values())) for name in wanted}

    def swapped_in(self, model: str) -> AbstractContextManager[Any]:
        """Inside, the module holds the weights of this name."""
        if model == "policy":
            return nullcontext()
        if self.sharded:
            reshard(self.module)
        if model == "ref" and self.adapter and not self.sharded and self._reference_is_bare():
            return switched_off(self.adapter)
        return self.shadows[model].swapped_in()

    def _reference_is_bare(self) -> bool:
        """Does the reference's adapter add nothing, as a fresh one does?"""
        pairs = zip(self.named, self.shadows["ref"].weights, strict=True)
        return not any(bool(weight.any()) for name, weight in pairs if "lora_B" in name)

    def follow(self) -> None:
        """There was an update: the average follows it."""
        if "ema" in self.shadows:
            decay = self.ema_decay(self.num_updates) if callable(self.ema_decay) else self.ema_decay
            replace(self.shadows["ema"], decay=decay).follow()
        self.num_updates += 1

    def state_dict(self) -> State:
        """Whole and on the CPU. With sharded weights every process must call it."""
        return state_of(list(self.named.items()), self.shadows) | {"num_updates": self.num_updates}

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when the state belongs to other weights or shadows."""
        load_state(state, list(self.named.items()), self.shadows)
        self.num_updates = state["num_updates"]


@contextmanager
def switched_off(layers: Sequence[Any]) -> Iterator[None]:
    """Inside, the adapter's layers compute without it, which saves its share of every forward; no gradient may be taken."""
    # peft's own switch also changes which weights take gradients.
    for layer in layers:
        layer._disable_adapters = True
    try:
        with torch.no_grad():
            yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
