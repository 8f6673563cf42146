"""Prompts from rows in our words, each row checked: all of a file before training starts, or built when they are asked for."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from mmrl.core.types import Prompt
from mmrl.data.files.ahead import Watch, ahead, same
from mmrl.data.layouts.source import Source
from mmrl.data.readers import Row, StoredHfDataset, hf_row, hf_rows, open_hf
from mmrl.data.sources import LazyPrompts
from mmrl.data.validate import FILE_ROW, Report, check_new_id

OURS = (FILE_ROW, *("question", "options", "problem_type", "split", "size", "system", "completion", "duration", "fps"))
"""Columns of prompts that mmrl itself reads or makes."""
Measured = tuple[list[object], list[tuple[int, int]]]
"""The pictures and clips of a row, and the widths and heights of the pictures."""


@runtime_checkable
class RowReader(Protocol):
    """Makes prompts of rows; `mmrl.data.grounding.GroundingLayout` and `mmrl.data.questions.Questions` are two."""

    @property
    def notes(self) -> Counter[str]: ...
    @property
    def decode(self) -> bool: ...
    def measure(self, row: Row) -> Measured: ...
    def prompts(self, row: Row, measured: Callable[[], Measured] | None = None) -> list[Prompt]: ...
    def split_of(self, row: Row) -> str: ...


RowPrompts = tuple[Row, list[Prompt]]
"""A good row, in our words, and its prompts."""


def read_prompts(
    name: str,
    rows: Callable[[Report], Iterator[Row]],
    reader: RowReader,
    split: str | None = None,
    limit: int = 20,
    watch: Watch = same,
) -> tuple[list[Prompt], Report]:
    """All good prompts in order, and a report that lists up to `limit` bad rows; `watch` sees the rows go by.

    `rows` is called with the report, which gets those that cannot be read; `split` keeps the rows that belong to it.
    """
    report, prompts = Report(name, limit), list[Prompt]()
    for row, found in check_rows(rows, reader, report, split, watch):
        for prompt in found:
            report.note_duplicate(prompt, row.place)
        prompts += found
    return prompts, report


def check_rows(
    rows: Callable[[Report], Iterator[Row]], reader: RowReader, report: Report, split: str | None = None, watch: Watch = same
) -> Iterator[RowPrompts]:
    """Every good row with its prompts, in order; bad ones go into the report.

    Threads look at the pictures of the next rows. Problems still come in the order of the rows.
    """
    ids, unread = set[str](), Report(report.source, report.limit)
    numbered = ((row, unread.num_problems) for row in rows(unread))

    def measure(item: tuple[Row, int]) -> Measured:
        row, _ = item
        return reader.measure(row) if split is None or reader.split_of(row) == split else ([], [])

    for (row, bad), measured in watch(ahead(numbered, measure)):
        report.take_over(unread, bad)
        found = list[Prompt]()
        with report.collecting(row.place):
            if split is not None and reader.split_of(row) != split:
                continue
            report.num_rows += 1
            for prompt in reader.prompts(row, measured):
                check_new_id(prompt, ids)
                found.append(prompt)
                report.kept.update(name for name, value in prompt.columns.items() if name not in OURS and value is not None)
            report.note_pictures(found[0].media if found else (), reader.decode)
            yield row, found
    report.take_over(unread, unread.num_problems)
    report.num_rows += unread.num_rows
    report.notes.update(unread.notes)
    report.notes.update(reader.notes)
    report.losses = unread.losses
    report.unused.update(unread.unused)


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


def streamed_prompts(data: Iterable[Mapping[str, object]], name: str, prompts_of: PromptsOf) -> Iterator[Prompt]:
    """An IterableDataset as prompts; a bad row raises ValueError, naming its place, when reached."""
    for row in hf_rows(data, name):
        try:
            prompts = prompts_of(row)
        except (ValueError, OSError) as error:
            raise ValueError(f"{row.place}: {error}") from None
        yield from prompts
