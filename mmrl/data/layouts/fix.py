"""Writes the good rows of a file in our words, and counts the others by what is wrong with them."""

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mmrl.answers.boxes.box import Box
from mmrl.core.samples import VIDEO, is_named, kind_of
from mmrl.core.types import MediaSize, Prompt
from mmrl.data.files.ahead import Watch, same
from mmrl.data.files.paths import write_jsonl
from mmrl.data.files.videos import cell_of
from mmrl.data.layouts.base import BOXES
from mmrl.data.layouts.habits import BoxHabits
from mmrl.data.layouts.load import RowReader, check_rows
from mmrl.data.layouts.source import Source
from mmrl.data.layouts.write import LineWriter, answer_columns, answer_of
from mmrl.data.readers import Cell, Row, as_list
from mmrl.data.validate import FILE_ROW, Problem, Report

SHOWN = 20
"""Problems that are printed."""
_ALL = 10**7
_DETAIL = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\S*[\d/\\]\S*|\S+\.\w{2,5}\b")


@dataclass(frozen=True)
class Fixed:
    """The file that was written, and what was left out of it."""

    out: Path
    num_rows: int
    num_written: int
    reasons: Mapping[str, int]
    """What was wrong, without its details -> how often."""
    problems: tuple[Problem, ...]
    notes: Mapping[str, int]

    def __str__(self) -> str:
        lines = [f"{self.out}: {self.num_written} rows written, {sum(self.reasons.values())} of {self.num_rows} left out"]
        lines += [f"{count} x {reason}" for reason, count in sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))]
        lines += [f"{count} {note}" for note, count in sorted(self.notes.items())]
        lines += [f"left out: {problem}" for problem in self.problems[:SHOWN]]
        hidden = len(self.problems) - SHOWN
        return "\n  ".join([*lines, f"and {hidden} more"] if hidden > 0 else lines)


def fix(source: Source, reader: RowReader, out: str | Path, habits: BoxHabits | None, watch: Watch = same) -> Fixed:
    """Write the good rows of a file, all or nothing; boxes become corners in pixels.

    Exact duplicates of earlier rows are left out too; pictures held as bytes go into a folder next to `out`.
    `habits` are the reader's, None if the user said how boxes are written. Raises ValueError if no row is right, boxes look
    written otherwise, or `out` is the source.
    """
    out = Path(out)
    if out.exists() and out.resolve() == source.path.resolve():
        raise ValueError(f"--fix {out} is the file that is read: write another one")
    if out.suffix.lower() != ".jsonl":
        raise ValueError(f"--fix {out} is to be JSONL: call it {out.with_suffix('.jsonl').name}")
    report, writer = Report(str(source.path), _ALL), LineWriter(out, out.parent)
    lines, seen = list[dict[str, Cell]](), dict[object, str]()
    for row, found in check_rows(source.rows, reader, report, source.rows_split, watch):
        with report.collecting(row.place):
            new = [prompt for prompt in found if _is_new(prompt, row.place, seen)]
            if not new:
                raise ValueError("the row says exactly what one before it says")
            lines += [writer.line(line_of(prompt, row, source)) for prompt in new]
    report.note_if_empty()
    if habits is not None and habits.suspicion is not None:
        raise ValueError(f"{source.path}: {habits.suspicion}; nothing was written")
    if not lines:
        del report.problems[SHOWN:]
        raise ValueError(f"no row of {source.path} is right, so nothing was written\n{report}")
    write_jsonl({out: lines})
    # annotations that were left out are in the notes
    problems = tuple(problem for problem in report.problems if problem.text != report.losses)
    reasons = Counter(reason_of(problem.text) for problem in problems)
    return Fixed(out, report.num_rows, len(lines), reasons, problems, dict(report.notes))


def line_of(prompt: Prompt, row: Row, source: Source) -> dict[str, Cell]:
    """A prompt as a row of our own: of grounding_jsonl, or of qa_jsonl."""
    columns = {name: value for name, value in prompt.columns.items() if name != FILE_ROW}
    line: dict[str, Cell] = {"id": prompt.id, **_media(prompt, row, source.columns.get("image", "image"))}
    if source.guess.data_set != BOXES:
        kind = columns.pop("problem_type")
        line |= {"question": columns.pop("question"), **answer_of(prompt), "kind": kind}
        return {**line, **columns}
    line |= {"question": prompt.text, **boxes_in_pixels(prompt)}
    return {**line, **{name: value for name, value in columns.items() if name not in line}}


def reason_of(text: str) -> str:
    """A problem without its details: `"picture a/7.png does not exist" -> "picture .. does not exist"`."""
    return re.sub(r"(\.\.[\s,]*){2,}", ".. ", _DETAIL.sub("..", text.partition("; ")[0]))[:100].strip()


def _is_new(prompt: Prompt, place: str, seen: dict[object, str]) -> bool:
    names = [str(media) if is_named(media) else None for media in prompt.media]
    key = (prompt.text, tuple(names), repr(prompt.answer))
    # only pixels tell pictures of a table apart, and they were not compared
    return None in names or seen.setdefault(key, f"{place} {prompt.id}") == f"{place} {prompt.id}"


def _media(prompt: Prompt, row: Row, column: str) -> dict[str, Cell]:
    """The prompt's media: absolute paths, and the row's own cell for a picture held as bytes."""
    if not prompt.media:
        return {}
    kind = kind_of(prompt.media[0])
    if kind is VIDEO:
        return {kind.name: [cell_of(clip, os.path.abspath(clip.source)) for clip in prompt.media]}
    cells = next((as_list(row.values[name]) for name in (column, *kind.columns) if row.values.get(name) is not None), [])
    files = [kind.file_of(media) for media in prompt.media]
    return {
        kind.name: [cell if file is None else os.path.abspath(file) for file, cell in zip(files, cells or files, strict=True)]
    }


def boxes_in_pixels(prompt: Prompt) -> dict[str, Cell]:
    """The column of a prompt's boxes, one or several, in pixels of its picture; errors are those of `in_pixels`."""
    return answer_columns("box", "boxes", prompt, lambda box: in_pixels(box, prompt.columns["size"]))


def in_pixels(box: Box, size: tuple[int, int]) -> Cell:
    """Two corners in pixels, with the box's label if it has one; what rounding pushes over the edge is cut."""
    found = box.to("pixel", MediaSize(*size, *size))
    cut = [round(min(max(x, 0.0), float(most)), 2) for x, most in zip(found.corners, [*size, *size], strict=True)]
    if cut[2] <= cut[0] or cut[3] <= cut[1]:
        raise ValueError(f"{box} has no area in pixels")
    return cut if box.label is None else {"bbox_2d": cut, "label": box.label}
