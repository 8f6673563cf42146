"""Prompts of drawn things: all captions of a split, in an order that a seed decides."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mmrl.core.types import Prompt


@runtime_checkable
class Caption(Protocol):
    """A named tuple of words, such as `Wish("red", "circle", "left")`, and what it asks for."""

    @property
    def caption(self) -> str: ...
    def _asdict(self) -> dict[str, Any]: ...


def captions_of(splits: Mapping[str, Sequence[Caption]], split: str, size: int | None, seed: int) -> list[Prompt]:
    """The first `size` captions of a split as prompts, in the seed's order, with their words as columns.

    Raises ValueError for an unknown split, or where it has fewer captions.
    """
    if split not in splits:
        raise ValueError(f"data.split is {split!r}: choose one of {', '.join(splits)}")
    found = splits[split]
    if size is not None and not 0 <= size <= len(found):
        raise ValueError(f"data.size is {size}, but the split {split!r} has {len(found)} captions: leave it out to take all")
    order = np.random.default_rng(seed).permutation(len(found))[:size].tolist()
    words = [(found[i].caption, found[i]._asdict()) for i in order]
    return [Prompt("-".join(columns.values()), caption, columns=columns) for caption, columns in words]
