"""Files with rows of our own, read and checked as `mmrl data check` does."""

from functools import partial
from pathlib import Path

from mmrl.core.types import Prompt
from mmrl.data.grounding import GroundingLayout
from mmrl.data.layouts.read import read_prompts
from mmrl.data.readers import read_rows
from mmrl.data.validate import Report


def read_grounding(path: Path, layout: GroundingLayout, split: str | None = None, limit: int = 20) -> tuple[list[Prompt], Report]:
    """All good prompts of a file, and a report on its bad rows."""
    return read_prompts(str(path), partial(read_rows, path), layout, split, limit)


def check_file(path: Path, layout: GroundingLayout | None = None, limit: int = 20) -> Report:
    """The report on every row and every picture, to its end; paths are relative to the file."""
    report = read_grounding(path, layout or GroundingLayout(path.parent, decode=True), limit=limit)[1]
    report.note_if_empty()
    report.refuse_duplicates()
    return report
