"""Prompts of several data sets that know the names of their sources."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mmrl.core.samples import Prompt
from mmrl.core.sources import Sources, StreamedSources
from mmrl.data.lazy import LazyPrompts

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
class MarkedStream(Iterable[Prompt]):
    """A stream of prompts that know their source."""

    prompts: Iterable[Prompt]
    mark: Marking

    def __iter__(self) -> Iterator[Prompt]:
        return map(self.mark, self.prompts)


def mark_all(prompts: Iterable[Prompt], mark: Marking) -> LazyPrompts | MarkedStream:
    """The prompts with their source; those of a list are read when they are asked for."""
    if isinstance(prompts, Sequence):
        return LazyPrompts(len(prompts), lambda i: mark(prompts[i]))
    return MarkedStream(prompts, mark)


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
