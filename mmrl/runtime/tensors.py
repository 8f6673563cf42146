"""Masked and grouped reductions on the shapes of mmrl.core.types."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor, nn

_TABLE = "is_table"


def within(group_ids: Int[Tensor, " n"], x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply f to every block of rows of x (n, ...) that share an id; f keeps the shape."""
    out = torch.empty_like(x)
    for group_id in set(map(int, group_ids)):
        rows = group_ids == group_id
        out[rows] = f(x[rows])
    return out


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean over the entries where mask is True; 0 where there are none."""
    kept = torch.where(mask, x, torch.zeros_like(x))
    if dim is None:
        return kept.sum() / mask.sum().clamp(min=1)
    return kept.sum(dim) / mask.sum(dim).clamp(min=1)


def pad_actions(x: Tensor, length: int, value: float = 0) -> Tensor:
    """Append actions to (n, t, ...) until t == length."""
    missing = length - x.shape[1]
    if missing <= 0:
        return x
    filler = x.new_full((x.shape[0], missing, *x.shape[2:]), value)
    return torch.cat([x, filler], dim=1)


def stack_ragged(rows: Sequence[Tensor]) -> Tensor:
    """1-D tensors of different length -> (n, longest), with zeros at the end."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def join_rows(parts: Sequence[Tensor]) -> Tensor:
    """Rows (m, ...) of all parts as one tensor; where their shapes differ, flat as (m, e), with zeros behind shorter ones."""
    if len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(list(parts))
    flat = [part.flatten(1) for part in parts]
    longest = max(part.shape[1] for part in flat)
    return torch.cat([torch.nn.functional.pad(part, (0, longest - part.shape[1])) for part in flat])


def own_part(x: Tensor, shape: torch.Size) -> Tensor:
    """(n, t, *shape) of (n, t, e) that `join_rows` made flat."""
    return x[..., : shape.numel()].reshape(*x.shape[:2], *shape)


def mark_tables(module: nn.Module) -> None:
    """Note which matrices are tables of rows that are looked up: embeddings."""
    for layer in module.modules():
        if isinstance(layer, nn.Embedding):
            setattr(layer.weight, _TABLE, True)


def is_matrix(weight: Tensor) -> bool:
    """Is the weight a matrix that something is multiplied with?"""
    return weight.ndim == 2 and not hasattr(weight, _TABLE)


@torch.no_grad()
def copy_all(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Write values into tensors, in place."""
    for weight, value in zip(to, values, strict=True):
        weight.copy_(value)


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; where it is sent from the host, nothing waits for the device."""
    # The copy the other way must be waited for: the host would read memory that is not written yet.
    return x.to(device, non_blocking=x.device.type == "cpu")
