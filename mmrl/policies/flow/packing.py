"""Cutting a batch of transitions into parts that fit one forward."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from mmrl.core.types import Batch, Scope


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
        yield with_mask(batch.take(rows, steps), here[rows][:, steps])


def with_mask(batch: Batch, mask: Bool[Tensor, "n t"]) -> Batch:
    """The same batch of which only the actions in `mask` train."""
    return replace(batch, rollouts=replace(batch.rollouts, action_mask=mask), share=batch.share * mask)


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
