"""Prompts of a source: all read and checked before training starts, or built when asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmrl.core.types import Prompt
from mmrl.data.layouts.read import RowReader, read_prompts
from mmrl.data.layouts.source import Source
from mmrl.data.lazy import LazyPrompts
from mmrl.data.readers import Row, StoredHfDataset, hf_row, hf_rows, open_hf
from mmrl.data.validate import Report, check_new_id

PromptsOf = Callable[[Row], list[Prompt]]
"""The prompts of a row."""


def load_prompts(source: Source, reader: RowReader) -> Sequence[Prompt]:
    """The source's prompts in order, or ValueError listing the first bad rows; those of a stored Dataset are built lazily."""
    source.say_layout()
    if source.is_stored:
        data = open_hf(str(source.path), source.split)
        return hf_prompts(data, source.path.name, translating(source, reader))
    prompts, report = read_prompts(str(source.path), source.rows, reader, source.rows_split)
    report.raise_if_bad()
    source.tell(*report.noted)
    systems = {str(prompt.columns["system"]) for prompt in prompts if prompt.columns.get("system") is not None}
    if systems:
        source.tell(
            f"{len(systems)} system messages are not shown to the model: set policy.system_prompt = {min(systems)[:200]!r}"
        )
    return prompts


def translating(source: Source, reader: RowReader) -> PromptsOf:
    """Makes prompts of the source's rows, which it says in our words first."""
    return lambda row: [prompt for said in source.translate(row) for prompt in reader.prompts(said)]


def hf_prompts(data: StoredHfDataset, name: str, prompts_of: PromptsOf) -> Sequence[Prompt]:
    """The prompts of a Dataset: all rows are checked at once (ValueError lists bad ones), pictures opened again when used."""
    report, ids, places = Report(name), set[str](), list[tuple[int, int]]()
    for row in hf_rows(data, name):
        report.num_rows += 1
        with report.collecting(row.place):
            for question, prompt in enumerate(prompts_of(row)):
                check_new_id(prompt, ids)
                places.append((row.number - 1, question))
    report.raise_if_bad()

    def prompt_at(index: int) -> Prompt:
        row, question = places[index]
        return prompts_of(hf_row(data, data[row], name, row + 1))[question]

    return LazyPrompts(len(places), prompt_at)


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
