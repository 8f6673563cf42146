"""Cutting a batch of transitions into parts that fit one forward, each of pictures of one size."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from mmrl.core.types import Batch, Scope
from mmrl.policies.flow.sizes import Size
from mmrl.policies.flow.trace import FlowTrace
from mmrl.runtime.tensors import own_part


def cut_sizes(batch: Batch) -> list[tuple[Size, Batch]]:
    """The batch by size of pictures: rows of one size in each part, with frozen readings in the shape of their own latents."""
    trace = batch.rollouts.trace
    assert isinstance(trace, FlowTrace)
    parts = trace.by_size(torch.arange(len(batch)))
    cut = [(size, batch if len(parts) == 1 else batch.take(rows)) for size, rows in parts]
    if len(parts) > 1 and bool(batch.rollouts.action_mask.any()) and torch.is_grad_enabled():
        # A part in which nothing trains would cost a forward.
        cut = [(size, part) for size, part in cut if bool(part.rollouts.action_mask.any())]
    return [(size, with_own_shape(part, trace.shape_at(size))) for size, part in cut]


def with_own_shape(batch: Batch, shape: torch.Size) -> Batch:
    """The same batch with latents of this shape, where frozen readings had room for larger ones."""
    if all(x.ndim != 3 for x in batch.frozen.values()):
        return batch
    return replace(batch, frozen={r: own_part(x, shape) if x.ndim == 3 else x for r, x in batch.frozen.items()})


def cut_actions(batch: Batch, most: int) -> Iterator[Batch]:
    """Parts of at most `most` actions that train, row after row. A row may lie in several parts; each action trains in one."""
    mask = batch.rollouts.action_mask
    chosen = mask.nonzero()
    if len(chosen) <= most:
        yield batch
        return
    for piece in chosen.split(most):
        rows, columns = piece[:, 0].unique(), piece[:, 1]
        here = torch.zeros_like(mask)
        here[piece[:, 0], columns] = True
        steps = slice(int(columns.min()), int(columns.max()) + 1)
        part, trained = batch.take(rows, steps), here[rows][:, steps]
        yield replace(part, rollouts=replace(part.rollouts, action_mask=trained), share=part.share * trained)


def cut_rows(batch: Batch, micro_batch: int, scope: Scope) -> Iterator[Batch]:
    """Parts of whole rows (or groups) of at most `micro_batch` actions that train; a larger one makes a part of its own."""
    costs = batch.rollouts.action_mask.sum(1)
    if scope == "batch" or int(costs.sum()) <= micro_batch:
        yield batch
        return
    names = batch.rollouts.group_ids if scope == "group" else torch.arange(len(batch))
    part: list[Tensor] = []
    filled = 0
    for name in names.unique():
        rows = (names == name).nonzero()[:, 0]
        cost = int(costs[rows].sum())
        if part and filled + cost > micro_batch:
            yield batch.take(torch.cat(part))
            part, filled = [], 0
        part.append(rows)
        filled += cost
    yield batch.take(torch.cat(part))
