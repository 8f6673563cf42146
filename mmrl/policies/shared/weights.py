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
        return cls([part(weight).detach().clone() for weight in parameters], decay, list(parameters))

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the live parameters hold the shadow's values. No gradient may be taken of what is computed."""
        # Through .data the version counters stay, so a graph built before remains valid once the values are back.
        live = [part(weight).data for weight in self.order]
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
                weight.lerp_(part(live).detach(), 1 - self.decay)


def copy_all(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for weight, value in zip(to, values, strict=True):
        weight.copy_(value)


def part(weight: Any) -> Any:
    """What this process holds of a weight: under ZeRO-3 the weight itself is empty between forwards."""
    return weight.ds_tensor if hasattr(weight, "ds_tensor") else weight


def whole(weight: Any, value: Any = None) -> Tensor:
    """A weight on the CPU, gathered when it is sharded over processes (all of them must ask).

    Args:
        value: something spread as the weight is, to be gathered instead of it.
    """
    value = part(weight) if value is None else value
    if hasattr(weight, "ds_tensor"):
        parts = [torch.empty_like(value) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(parts, value.detach())
        value = torch.cat(parts)[: weight.ds_numel].view(weight.ds_shape)
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().cpu().clone()


@torch.no_grad()
def put(weight: Any, value: Tensor, to: Any = None) -> None:
    """Copy a whole value into a weight, into this process's shard when it is sharded.

    Args:
        to: something spread as the weight is, to be written instead of it.
    """
    to = part(weight) if to is None else to
    if hasattr(weight, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)
    elif hasattr(weight, "ds_tensor"):
        # DeepSpeed cuts the flat weight into equal parts and fills up the last.
        flat, size = value.flatten(), to.numel()
        mine = flat[size * torch.distributed.get_rank() :][:size]
        value = torch.nn.functional.pad(mine, (0, size - len(mine)))
    to.data.copy_(value)


def state_of(named: Sequence[tuple[str, nn.Parameter]], shadows: Mapping[str, Shadow]) -> State:
    """Weights and shadows by name, whole and on the CPU."""
    kept = {
        name: {key: whole(weight, value) for (key, weight), value in zip(named, shadow.weights, strict=True)}
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
        for (key, weight), value in zip(named, shadow.weights, strict=True):
            put(weight, state["shadows"][name][key], value)
