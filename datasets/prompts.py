"""Prompts for pictures, or questions to answer: a text file, a file or folder of rows, the texts themselves, or made up by rules.

    a red fox in the snow                                  one prompt per line of a .txt file
    {"prompt": "a red fox", "id": "7", "animal": "fox"}    one object per line of a .jsonl file
    {"image": "7.png", "caption": "a red fox"}             a caption or text in place of a prompt
    {"prompt": "What is 3 + 4?", "answer": 7}              a question, whose `answer` is the prompt's

Rows may be JSONL, JSON, CSV, TSV, parquet, tar files, data of Hugging Face or pictures with metadata.jsonl. Other columns are
passed to the rewards in `prompt.columns`, but for the row's own picture, which no prompt shows; for generators, `width` and
`height` in pixels are the size at which the prompt is drawn, instead of the policy's. Ids are those of the file or the numbers
of its lines.

    writer = "lettering"     a neon sign over a diner reading "Golden Harbour"       target, for the reward `ocr`
    writer = "objects"       a picture of two cats; a red cup and a blue kite        tag, include, exclude: for `object_counts`
    writer = "numbers"       the number 47                                           target, for the reward `ocr`

A writer makes up `size` prompts of a `split`, the same for the same seed; held-out tasks are in no training split.
Licence: that of your data; Apache-2.0 for what a writer makes up.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mmrl import Prompt
from mmrl.data.drawn.prompt_writers import write
from mmrl.data.layouts.base import DRAWN, MEDIA, drawn_text
from mmrl.data.layouts.files import split_rows
from mmrl.data.readers import Row, prompts_from, read_text
from mmrl.data.validate import FILE_ROW, Report
from mmrl.runtime.ranges import Count, Seed

LINE = "a line of a text file"
"""The column of a row that is only a text."""


def load(
    path: str | Path | None = None,
    texts: Sequence[str] = (),
    column: str | None = None,
    writer: str | None = None,
    size: Count | None = None,
    split: str | None = None,
    seed: Seed = 0,
) -> Sequence[Prompt]:
    """The prompts, in their order; blank lines are left out.

    Args:
        path: a .txt file, or a file or folder of rows.
        texts: the prompts themselves, in place of a file.
        column: of rows, the one that holds the prompt; None: prompt, caption or text.
        writer: makes prompts up, in place of a file.
        size: of a writer, how many; None: 1000, or all where there are fewer.
        split: of a folder the one to read; of rows, those whose column `split` says so; of a writer, train (None) or held_out.
        seed: of a writer.

    Raises:
        ValueError: none or several of path, texts and writer, an idle argument, or listing the first bad rows with file and line.
    """
    if (path is not None) + bool(texts) + (writer is not None) != 1:
        raise ValueError("the data set 'prompts' reads one source: set data.path, data.texts or data.writer")
    is_lines = path is None or Path(path).suffix.lower() == ".txt"
    read = ("split", "size", "seed") if writer else () if is_lines else ("split", "column")
    given = {"split": split, "size": size, "seed": seed or None, "column": column}
    if idle := [name for name, value in given.items() if value is not None and name not in read]:
        raise ValueError(f"data.{idle[0]} is not read here: size and seed are of data.writer, column of rows, split of both")
    if writer is not None:
        return write(writer, size, split or "train", seed)
    report = Report(str(path or "texts"))
    rows = _lines(path, texts) if path is None or is_lines else split_rows(Path(path), report, split)
    return prompts_from(rows, report, lambda row: _prompt(row, column))


def _lines(path: str | Path | None, texts: Sequence[str]) -> Iterator[Row]:
    source = "texts" if path is None else Path(path).name
    for number, line in enumerate(texts if path is None else read_text(Path(path)).splitlines(), start=1):
        if line.strip():
            yield Row({LINE: line.strip()}, source, number)


def _prompt(row: Row, column: str | None) -> Prompt:
    column, text = drawn_text(row, (LINE,) if LINE in row.values else DRAWN if column is None else (column,))
    columns = {name: value for name, value in row.values.items() if name not in (column, "id", *MEDIA)}
    columns[FILE_ROW] = row.place
    return Prompt(str(row.values.get("id", row.number)), text, answer=row.values.get("answer"), columns=columns)
