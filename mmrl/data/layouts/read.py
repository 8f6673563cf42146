"""Prompts from rows in our words, each row checked: those of a file in order, or those of a stored data set when asked for."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mmrl.core.types import Prompt
from mmrl.data.files.ahead import Watch, ahead, same
from mmrl.data.readers import Row
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


@dataclass(frozen=True)
class RowPrompts:
    """A good row, in our words, and its prompts."""

    row: Row
    prompts: list[Prompt]


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
    for good in check_rows(rows, reader, report, split, watch):
        for prompt in good.prompts:
            report.note_duplicate(prompt, good.row.place)
        prompts += good.prompts
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
        found, good = list[Prompt](), None
        with report.collecting(row.place):
            if split is not None and reader.split_of(row) != split:
                continue
            report.num_rows += 1
            for prompt in reader.prompts(row, measured):
                check_new_id(prompt, ids)
                found.append(prompt)
                report.kept.update(name for name, value in prompt.columns.items() if name not in OURS and value is not None)
            report.note_pictures(found[0].media if found else (), reader.decode)
            good = RowPrompts(row, found)
        if good is not None:
            yield good
    report.take_over(unread, unread.num_problems)
    report.num_rows += unread.num_rows
    report.notes.update(unread.notes)
    report.notes.update(reader.notes)
    report.losses = unread.losses
    report.unused.update(unread.unused)
