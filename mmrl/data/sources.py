"""Prompts that are built when they are asked for, and prompts of several data sets that know the names of their sources."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import overload

from mmrl.core.samples import Prompt


@dataclass(frozen=True)
class LazyPrompts(Sequence[Prompt]):
    """n prompts, each built when it is asked for: `LazyPrompts(8, lambda i: Prompt(str(i)))`."""

    size: int
    build: Callable[[int], Prompt]
    """The prompt at a place from 0 to size - 1, always the same one."""

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...

    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self.build(i) for i in range(*index.indices(self.size))]
        if not -self.size <= index < self.size:
            raise IndexError(f"prompt {index} of {self.size}")
        return self.build(index % self.size)


def lazily(size: int, build: Callable[[int], Prompt]) -> LazyPrompts:
    """n prompts, of which the first is built at once, so that what cannot be drawn is refused here."""
    prompts = LazyPrompts(size, build)
    if size:
        prompts[0]
    return prompts


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
        return LazyPrompts(len(self), self._at)[index]

    def _at(self, place: int) -> Prompt:
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


CATEGORY = "category"
"""The column by which samplers tell kinds of prompts apart unless they are given another one."""


@dataclass(frozen=True)
class Marking:
    """The name of a source, put into its prompts and their ids, and the column `category`."""

    name: str
    category: str = ""
    """The column whose value becomes `category`; empty: the name of the source, where a prompt has no category of its own."""

    def __call__(self, prompt: Prompt) -> Prompt:
        """Raises ValueError for a prompt without the column that is its category."""
        if self.category and prompt.columns.get(self.category) is None:
            raise ValueError(
                f"prompt {prompt.id!r} of the source {self.name!r} has no column {self.category!r}, its category: "
                "give every row one, or remove category from the table of the source"
            )
        own = {CATEGORY: prompt.columns[self.category]} if self.category else {CATEGORY: self.name, **prompt.columns}
        return replace(prompt, id=f"{self.name}/{prompt.id}", source=self.name, columns={**prompt.columns, **own})


@dataclass(frozen=True)
class StreamedPrompts(Iterable[Prompt]):
    """Prompts that may be gone through again: `StreamedPrompts(lambda: map(mark, prompts))`."""

    begin: Callable[[], Iterator[Prompt]]

    def __iter__(self) -> Iterator[Prompt]:
        return self.begin()


def mark_all(prompts: Iterable[Prompt], mark: Marking) -> LazyPrompts | StreamedPrompts:
    """The prompts with their source; those of a list are read when they are asked for."""
    if isinstance(prompts, Sequence):
        return LazyPrompts(len(prompts), lambda i: mark(prompts[i]))
    return StreamedPrompts(lambda: map(mark, prompts))


def join_sources(parts: Mapping[str, Iterable[Prompt]], weights: Mapping[str, float] | None) -> Sources | StreamedSources:
    """The prompts of all sources; ValueError for one that is empty."""
    for name, part in parts.items():
        if isinstance(part, Sequence) and not len(part):
            raise ValueError(
                f"the source {name!r} of [[data]] has no prompts: check its path, split and filters with `mmrl data check`, "
                "or remove its table"
            )
    lists = {name: part for name, part in parts.items() if isinstance(part, Sequence)}
    return Sources(lists, weights) if len(lists) == len(parts) else StreamedSources(parts, weights)
