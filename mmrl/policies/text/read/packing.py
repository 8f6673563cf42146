"""Cutting a batch of rollouts into parts that fit one forward, and whether rows that share a prompt read it once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from mmrl.core.types import Batch, Scope
from mmrl.policies.text.trace import TextTrace

WORTH = 1.1
"""Positions of rows that repeat their prompts, over those of one packed row; below, either way is as fast as the other."""


@dataclass(frozen=True)
class Cost:
    """Positions of one forward over some rows, where the last token of a completion is never fed.

    Packed, the sum of prompts, each once, and completions; repeated, all rows have the longest prompt and completion.
    """

    packed: bool
    prompts: Sequence[int]
    """Row -> its prompt."""
    prompt_lengths: Sequence[int]
    """Tokens of each row's prompt."""
    lengths: Sequence[int]

    @classmethod
    def of(cls, trace: TextTrace, packed: bool) -> "Cost":
        """The cost of rows of a trace."""
        index = trace.prompt_index.tolist()
        return cls(packed, index, [len(trace.prompts[i]) for i in index], trace.lengths.tolist())

    def __call__(self, rows: Sequence[int]) -> int:
        fed = [max(0, self.lengths[i] - 1) for i in rows]
        if self.packed:
            return sum({self.prompts[i]: self.prompt_lengths[i] for i in rows}.values()) + sum(fed)
        return len(rows) * (max(self.prompt_lengths[i] for i in rows) + max(fed))


def worth_packing(trace: TextTrace) -> bool:
    """Would rows that repeat their prompts be at least WORTH times as many positions as one packed row of them?"""
    packed, rows = Cost.of(trace, packed=True), range(len(trace))
    return len(trace) > 0 and replace(packed, packed=False)(rows) >= WORTH * packed(rows)


def pack(batch: Batch, micro_batch: int, scope: Scope, packed: bool) -> Iterator[Batch]:
    """Parts of at most `micro_batch` positions. Rows of a prompt stay together while they fit; a row or a group that is larger
    than `micro_batch` makes a part of its own, because neither can be cut."""
    trace = batch.rollouts.trace
    assert isinstance(trace, TextTrace)
    cost, index = Cost.of(trace, packed), trace.prompt_index.tolist()
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
