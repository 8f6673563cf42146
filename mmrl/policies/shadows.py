"""Weights kept beside the live ones: the reference, and an average that follows the policy."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.protocols import State


@dataclass(frozen=True)
class Shadow:
    """A copy of the trainable weights, to be looked through for the time of a reading.

    With a fresh LoRA it equals the model without its adapter, so one mechanism serves both kinds of training.
    """

    weights: list[Tensor]
    decay: float | None = None
    """shadow <- decay * shadow + (1 - decay) * policy after every optimizer step; None: it never moves."""
    order: list[nn.Parameter] = field(default_factory=list)

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter], decay: float | None = None) -> "Shadow":
        """The weights as they are now."""
        return cls([weight.detach().clone() for weight in parameters], decay, list(parameters))

    @contextmanager
    def worn(self) -> Iterator[None]:
        """Inside, the live parameters hold the shadow's values. No gradient may be taken of what is computed."""
        # Through .data the version counters stay, so a graph built before remains valid once the values are back.
        live = [weight.data for weight in self.order]
        kept = [weight.clone() for weight in live]
        copy_all(live, self.weights)
        try:
            with torch.no_grad():
                yield
        finally:
            copy_all(live, kept)

    @torch.no_grad()
    def follow(self) -> None:
        if self.decay is not None:
            for weight, live in zip(self.weights, self.order, strict=True):
                weight.lerp_(live.detach(), 1 - self.decay)


def copy_all(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for weight, value in zip(to, values, strict=True):
        weight.copy_(value)


def whole(weight: Any) -> Tensor:
    """A weight on the CPU, gathered when it is sharded over processes (all of them must ask)."""
    return (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).detach().cpu().clone()


@torch.no_grad()
def put(weight: Any, value: Tensor) -> None:
    """Copy a whole value into a weight, into this process's shard when it is sharded."""
    if hasattr(weight, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)
    weight.data.copy_(value)


def state_of(named: Sequence[tuple[str, nn.Parameter]], shadows: Mapping[str, Shadow]) -> State:
    """Weights and shadows by name, whole and on the CPU."""
    kept = {
        name: {key: whole(value) for (key, _), value in zip(named, shadow.weights, strict=True)}
        for name, shadow in shadows.items()
    }
    return {"weights": {name: whole(weight) for name, weight in named}, "shadows": kept}


def load_state(state: State, named: Sequence[tuple[str, nn.Parameter]], shadows: Mapping[str, Shadow]) -> None:
    """Put a state of `state_of` back. Raises ValueError when it belongs to other weights or shadows."""
    for what, found, own in (
        ("weights", set(state["weights"]), {name for name, _ in named}),
        ("shadows", set(state["shadows"]), set(shadows)),
    ):
        if found != own:
            raise ValueError(
                f"the saved state has other {what} than this policy ({sorted(found ^ own)[:3]} ...): "
                "resume with the policy settings and the algorithm of the saved run"
            )
    for name, weight in named:
        put(weight, state["weights"][name])
    for name, shadow in shadows.items():
        for (key, _), weight in zip(named, shadow.weights, strict=True):
            put(weight, state["shadows"][name][key])
