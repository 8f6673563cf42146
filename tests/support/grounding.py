"""Files with rows of our own, read and checked as `mmrl data check` does."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mmrl.app.plugins.resolve import load
from mmrl.core.types import Prompt
from mmrl.data.convert import Conversion, convert_source, source_to_convert
from mmrl.data.grounding import GroundingLayout
from mmrl.data.layouts.annotations.coco import QUESTION
from mmrl.data.layouts.load import read_prompts
from mmrl.data.layouts.source import foreign, open_foreign
from mmrl.data.readers import read_rows
from mmrl.data.split import Part, split_source
from mmrl.data.validate import Report

load_boxes, load_questions = load("grounding_jsonl", "datasets"), load("qa_jsonl", "datasets")


def read_grounding(path: Path, layout: GroundingLayout, split: str | None = None, limit: int = 20) -> tuple[list[Prompt], Report]:
    """All good prompts of a file, and a report on its bad rows."""
    return read_prompts(str(path), partial(read_rows, path), layout, split, limit)


def read(path: Path, **settings: Any) -> list[tuple[str, Any, Any]]:
    """What the data set makes of a file of boxes, or of a folder."""
    return [(prompt.text, prompt.answer, prompt.media) for prompt in load_boxes(path, **settings)]


def check_file(path: Path, layout: GroundingLayout | None = None, limit: int = 20) -> Report:
    """The report on every row and every picture, to its end; paths are relative to the file."""
    report = read_grounding(path, layout or GroundingLayout(path.parent, decode=True), limit=limit)[1]
    report.note_if_empty()
    report.refuse_duplicates()
    return report


def split(path: Path, out: Path, parts: Mapping[str, float], seed: int = 0) -> list[Part]:
    """Deal the rows of a file out, whatever its layout."""
    found = foreign(path)
    return split_source(path if found is None else open_foreign(path, found), out, parts, seed)


def convert(
    source: str | Path,
    kind: str | None,
    out: Path,
    image_root: Path | None = None,
    question: str = QUESTION,
    columns: Mapping[str, str] | None = None,
    split: str | None = None,
    each: bool = False,
) -> Conversion:
    """Write a file's rows in our words, as `mmrl data convert` does."""
    return convert_source(source_to_convert(Path(source), kind, question, columns, split, each), Path(out), image_root)
