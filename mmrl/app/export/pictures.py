"""A few held-out pictures of the run in its model card: what it drew, not the best of it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from mmrl.app.errors import printable
from mmrl.app.report.data import EVAL, RunData, by_prompt, read_rows
from mmrl.app.report.rows import Row

MOST = 4
FOLDER = "samples"


def pictures(data: RunData, step: int, folder: Path) -> Iterator[str]:
    """Copy the first picture of each of the first held-out prompts at this step to `folder`, and yield the lines that show them.

    Nothing for models that write, or where held-out prompts were not evaluated at this step.
    """
    if step not in data.run.sample_steps(EVAL):
        return
    rows = [rows[0] for rows in by_prompt(read_rows(data.run, EVAL, [step], data.box_space)).values()]
    drawn = [row for row in rows if row.line["image"] is not None][:MOST]
    if drawn:
        yield from (
            "",
            "## Pictures",
            "",
            f"The first {len(drawn)} held-out prompts at step {step}, the first picture of each:",
            "",
        )
    for i, row in enumerate(drawn):
        yield from (*lines_of(data, row, folder, i), "")


def lines_of(data: RunData, row: Row, folder: Path, i: int) -> Iterator[str]:
    source = data.run.media / Path(row.line["image"]["file"]).name
    name = f"{FOLDER}/{i}{source.suffix}"
    (folder / FOLDER).mkdir(exist_ok=True)
    shutil.copyfile(source, folder / name)
    yield f"![Picture {i + 1}]({name})"
    yield ""
    yield from (f"    {printable(line)}" for line in row.line["text"].splitlines())
