"""Prompts over a Hugging Face data set, built when asked for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from mmrl.core.types import Prompt
from mmrl.data.layouts.read import PromptMaker
from mmrl.data.readers import Row, StoredHfDataset, hf_rows
from mmrl.data.validate import Report, check_new_id


@dataclass(frozen=True)
class StoredPrompts(Sequence[Prompt]):
    """A Dataset as a sequence of prompts. All rows are checked at once; pictures are opened again only when used.

    Raises ValueError listing the first bad rows.
    """

    data: StoredHfDataset
    name: str
    layout: PromptMaker
    places: list[tuple[int, int]] = field(init=False)
    """Prompt -> (row, which of the row's questions)."""

    def __post_init__(self) -> None:
        report, ids, places = Report(self.name), set[str](), list[tuple[int, int]]()
        for row in hf_rows(self.data, self.name):
            report.num_rows += 1
            with report.collecting(row.place):
                for i, prompt in enumerate(self.layout.prompts(row)):
                    check_new_id(prompt, ids)
                    places.append((row.number - 1, i))
        report.raise_if_bad()
        object.__setattr__(self, "places", places)

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row, question = self.places[index]
        return self.layout.prompts(Row(self.data[row], self.name, row + 1))[question]


@dataclass(frozen=True)
class StreamedPrompts:
    """An IterableDataset as prompts; may be gone through again. A bad row raises ValueError, naming its place, when reached."""

    data: Iterable[Mapping[str, object]]
    name: str
    layout: PromptMaker

    def __iter__(self) -> Iterator[Prompt]:
        for row in hf_rows(self.data, self.name):
            try:
                prompts = self.layout.prompts(row)
            except (ValueError, OSError) as error:
                raise ValueError(f"{row.place}: {error}") from None
            yield from prompts
