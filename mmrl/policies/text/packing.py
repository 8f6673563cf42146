"""Cutting a batch of rollouts into parts that fit one forward."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from mmrl.core.types import Batch, Scope
from mmrl.policies.text.trace import TextTrace


@dataclass(frozen=True)
class Cost:
    """Positions of one forward over some rows: longest prompt and longest completion count for all, as padding does."""

    shared: bool
    prompts: Sequence[int]
    """Row -> its prompt."""
    prompt_lengths: Sequence[int]
    """Tokens of each row's prompt."""
    lengths: Sequence[int]

    def __call__(self, rows: Sequence[int]) -> int:
        num_prompts = len({self.prompts[i] for i in rows}) if self.shared else len(rows)
        return num_prompts * max(self.prompt_lengths[i] for i in rows) + len(rows) * max(self.lengths[i] for i in rows)


def pack(batch: Batch, micro_batch: int, scope: Scope, shared: bool) -> Iterator[Batch]:
    """Parts of at most `micro_batch` positions. Rows of a prompt stay together while they fit; a row or a group that is larger
    than `micro_batch` makes a part of its own, because neither can be cut."""
    trace = batch.rollouts.trace
    assert isinstance(trace, TextTrace)
    index = trace.prompt_index.tolist()
    cost = Cost(shared, index, [len(trace.prompts[i]) for i in index], trace.lengths.tolist())
    everything = list(range(len(batch)))
    if scope == "batch" or len(batch) <= 1 or cost(everything) <= micro_batch:
        yield batch
        return
    names = batch.rollouts.group_ids.tolist() if scope == "group" else index
    units: dict[int, list[int]] = {}
    for row, name in zip(everything, names, strict=True):
        units.setdefault(name, []).append(row)
    part: list[int] = []
    for unit in sorted(units.values(), key=lambda rows: max(cost.prompt_lengths[i] + cost.lengths[i] for i in rows)):
        pieces = [unit] if scope == "group" or cost(unit) <= micro_batch else [[row] for row in unit]
        for piece in pieces:
            if part and cost(part + piece) > micro_batch:
                yield batch.take(torch.tensor(part))
                part = []
            part = part + piece
    yield batch.take(torch.tensor(part))
