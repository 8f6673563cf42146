"""One row without padding that holds every prompt once, followed by its completions; and how many rows one forward takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int, Real
from torch import Tensor

from mmrl.core.types import Batch, Scope
from mmrl.policies.text.packed.attention import PackedGroup
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.trace import Insets, TextTrace, numbers_of, offsets_of, types_of
from mmrl.runtime.tensors import to_device

WORTH = 1.1
"""Positions of rows that repeat their prompts, over those of one packed row; below, either way is as fast as the other."""


@dataclass(frozen=True)
class PackedRow:
    """[prompt 1 | its completions, the longest first | prompt 2 | ...]: s tokens on a axes of positions.

    A completion is fed without its last token, which predicts nothing, at the positions that follow its prompt.
    """

    token_ids: Int[Tensor, "1 s"]
    positions: Real[Tensor, "a 1 s"]
    type_ids: Int[Tensor, "1 s"] | None
    """0 text, 1 image, 2 video, where the model wants to know."""
    groups: tuple[PackedGroup, ...]
    place: Int[Tensor, "n t"]
    """Where in the row each token of each completion is predicted; 0 where there is none."""
    media: tuple[int, ...]
    """The media in their order in the row: prompt k's have number k, those of completions follow, row after row."""

    def to(self, device: torch.device) -> "PackedRow":
        """The row on another device."""
        types = None if self.type_ids is None else to_device(self.type_ids, device)
        moved = {name: to_device(getattr(self, name), device) for name in ("token_ids", "positions", "place")}
        return replace(self, type_ids=types, **moved)


def pack_row(
    prompts: Sequence[Encoded],
    prompt_index: Int[Tensor, " n"],
    tokens: Int[Tensor, "n t"],
    lengths: Int[Tensor, " n"],
    insets: Insets = (),
) -> PackedRow:
    """The row of these prompts, in order, and of completions that answer them: row i answers prompt `prompt_index[i]`."""
    place = torch.zeros_like(tokens)
    ids: list[Tensor] = []
    positions: list[Tensor] = []
    types: list[Tensor] = []
    groups: list[PackedGroup] = []
    media: list[int] = []
    numbers = numbers_of(insets, len(tokens), len(prompts))
    offsets, own_types = offsets_of(insets, (len(prompts[0].positions), *tokens.shape)), types_of(insets, tokens.shape)
    at = 0
    for index, prompt in enumerate(prompts):
        rows = sorted((prompt_index == index).nonzero()[:, 0].tolist(), key=lambda row: -int(lengths[row]))
        fed = [max(0, int(lengths[row]) - 1) for row in rows]
        groups.append(PackedGroup(at, len(prompt), tuple(count for count in fed if count)))
        at += len(prompt)
        ids.append(prompt.token_ids)
        positions.append(prompt.positions)
        types.append(torch.zeros_like(prompt.token_ids) if prompt.type_ids is None else prompt.type_ids)
        media.append(index)
        for row, count in zip(rows, fed, strict=True):
            place[row, :1] = groups[-1].middle - 1
            place[row, 1 : count + 1] = torch.arange(at, at + count)
            ids.append(tokens[row, :count])
            positions.append(prompt.positions[:, -1:] + 1 + offsets[:, row, :count])
            types.append(own_types[row, :count])
            media += numbers[row]
            at += count
    typed = None if all(prompt.type_ids is None for prompt in prompts) else torch.cat(types)[None]
    return PackedRow(torch.cat(ids)[None], torch.cat(positions, 1)[:, None], typed, tuple(groups), place, tuple(media))


@dataclass(frozen=True)
class Cost:
    """Positions of one forward over some rows, where the last token of a completion is never fed.

    Packed: every prompt once, and all completions. Repeated: every row has the longest prompt and the longest completion.
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
