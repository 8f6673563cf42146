"""Behind a prompt: the beginning of a completion, and the pictures and clips within completions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from jaxtyping import Int, Real
from torch import Tensor

from mmrl.policies.text.families import Media
from mmrl.policies.text.prompt.encode import Encoded


@dataclass(frozen=True)
class Inset:
    """The tokens of a completion, from its token `start` on, that show pictures or clips."""

    start: int
    media: Media
    positions: Real[Tensor, "a k"]
    """Counted from the first of them; the token that follows is read behind the largest."""
    type_ids: Int[Tensor, " k"] | None = None
    """As `Encoded.type_ids`."""

    @property
    def stop(self) -> int:
        return self.start + self.positions.shape[1]


Insets = tuple[tuple[Inset, ...], ...]
"""Row -> those of its completion, in order; empty where no row has any."""


def append(prompt: Encoded, begun: Sequence[int], insets: Sequence[Inset] = ()) -> Encoded:
    """The prompt with the beginning of a completion behind it, at the positions where training reads it."""
    offsets = offsets_of((tuple(insets),), (len(prompt.positions), 1, len(begun)))[:, 0]
    types = prompt.type_ids
    if types is not None:
        types = torch.cat([types, types_of((tuple(insets),), (1, len(begun)))[0].to(types)])
    return replace(
        prompt,
        token_ids=torch.cat([prompt.token_ids, torch.tensor(list(begun))]),
        positions=torch.cat([prompt.positions, prompt.positions[:, -1:] + 1 + offsets], dim=1),
        type_ids=types,
        begun=tuple(begun),
        more=tuple(one.media for one in insets),
        views={},
    )


def offsets_of(insets: Insets, shape: Sequence[int], device: torch.device | None = None) -> Real[Tensor, "a n t"]:
    """How far behind its completion's first token each token is read, on every axis."""
    offsets = torch.arange(shape[-1], device=device).expand(tuple(shape))
    if not insets:
        return offsets
    positions = [one.positions for row in insets for one in row]
    offsets = offsets.to(positions[0] if positions else offsets).clone()
    for i, row in enumerate(insets):
        for one in row:
            offsets[:, i, one.stop :] += one.positions.max() + 1 - one.positions.shape[1]
            offsets[:, i, one.start : one.stop] = offsets[:, i, one.start, None] + one.positions.to(offsets)
    return offsets


def types_of(insets: Insets, shape: Sequence[int], device: torch.device | None = None) -> Int[Tensor, "n t"]:
    """0 text, 1 image, 2 video: what each token of each completion is."""
    types = torch.zeros(tuple(shape), dtype=torch.long, device=device)
    for i, row in enumerate(insets):
        for one in row:
            if one.type_ids is not None:
                types[i, one.start : one.stop] = one.type_ids.to(types)
    return types


def media_of(insets: Insets) -> tuple[Media, ...]:
    """The media of all rows, row after row."""
    return tuple(one.media for row in insets for one in row)


def numbers_of(insets: Insets, rows: int, first: int) -> list[range]:
    """Row -> the numbers of its media, where those of all rows are counted from `first` on."""
    counts = [len(row) for row in insets] or [0] * rows
    return [range(start, stop) for start, stop in pairwise(accumulate(counts, initial=first))]
