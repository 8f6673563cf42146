"""Prompts of a source: all read and checked before training starts, or built when asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from mmrl.core.types import Prompt
from mmrl.data.layouts.read import RowReader, read_prompts
from mmrl.data.layouts.source import Source
from mmrl.data.readers import Row, StoredHfDataset, hf_rows, open_hf
from mmrl.data.validate import Report, check_new_id

PromptsOf = Callable[[Row], list[Prompt]]
"""The prompts of a row."""


def load_prompts(source: Source, reader: RowReader) -> Sequence[Prompt]:
    """The source's prompts in order; of a data set of Hugging Face on disk, pictures are opened when a prompt is used.

    Raises ValueError listing the first bad rows.
    """
    source.say_layout()
    if source.is_stored:
        data = open_hf(str(source.path), source.split)
        return StoredPrompts(data, source.path.name, translating(source, reader))
    prompts, report = read_prompts(str(source.path), source.rows, reader, source.rows_split)
    report.raise_if_bad()
    source.tell(*(f"{count} {what}" for what, count in sorted(report.notes.items())))
    systems = {str(prompt.columns["system"]) for prompt in prompts if prompt.columns.get("system") is not None}
    if systems:
        source.tell(
            f"{len(systems)} system messages are not shown to the model: set policy.system_prompt = {min(systems)[:200]!r}"
        )
    return prompts


def translating(source: Source, reader: RowReader) -> PromptsOf:
    """Makes prompts of the source's rows, which it says in our words first."""
    return lambda row: [prompt for said in source.translate(row) for prompt in reader.prompts(said)]


@dataclass(frozen=True)
class StoredPrompts(Sequence[Prompt]):
    """A Dataset as a sequence of prompts. All rows are checked at once; pictures are opened again only when used.

    Raises ValueError listing the first bad rows.
    """

    data: StoredHfDataset
    name: str
    prompts_of: PromptsOf
    places: list[tuple[int, int]] = field(init=False)
    """Prompt -> (row, which of the row's questions)."""

    def __post_init__(self) -> None:
        report, ids, places = Report(self.name), set[str](), list[tuple[int, int]]()
        for row in hf_rows(self.data, self.name):
            report.num_rows += 1
            with report.collecting(row.place):
                for i, prompt in enumerate(self.prompts_of(row)):
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
        return self.prompts_of(Row(self.data[row], self.name, row + 1))[question]


@dataclass(frozen=True)
class StreamedPrompts:
    """An IterableDataset as prompts; may be gone through again. A bad row raises ValueError, naming its place, when reached."""

    data: Iterable[Mapping[str, object]]
    name: str
    prompts_of: PromptsOf

    def __iter__(self) -> Iterator[Prompt]:
        for row in hf_rows(self.data, self.name):
            try:
                prompts = self.prompts_of(row)
            except (ValueError, OSError) as error:
                raise ValueError(f"{row.place}: {error}") from None
            yield from prompts
