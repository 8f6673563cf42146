"""Prompts of several data sets, each under the name of its source."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import overload

from mmrl.core.samples import Prompt


@dataclass(frozen=True)
class Sources(Sequence[Prompt]):
    """Several lists of prompts, one behind the other."""

    parts: Mapping[str, Sequence[Prompt]]
    """By the names of the sources, in the order of the config."""
    weights: Mapping[str, float] | None = None
    """The share of each source among the prompts that are drawn, adding up to 1; None: as large as the source."""
    _ends: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", tuple(accumulate(len(part) for part in self.parts.values())))

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...

    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        part = bisect_right(self._ends, place)
        lists: list[Sequence[Prompt]] = list(self.parts.values())
        return lists[part][place - (self._ends[part - 1] if part else 0)]


@dataclass(frozen=True)
class StreamedSources(Iterable[Prompt]):
    """Several data sets of which at least one can only be read in order; read here in turns."""

    parts: Mapping[str, Iterable[Prompt]]
    weights: Mapping[str, float] | None = None
    """As of Sources."""

    def __iter__(self) -> Iterator[Prompt]:
        left = [iter(part) for part in self.parts.values()]
        while left:
            going: list[Iterator[Prompt]] = []
            for stream in left:
                for prompt in stream:
                    yield prompt
                    going.append(stream)
                    break
            left = going


def first_of_each(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """The first n prompts, taken from the sources in turn."""
    if not isinstance(prompts, Sources):
        return [prompts[i] for i in range(min(count, len(prompts)))]
    return list(islice(StreamedSources(prompts.parts), count))
