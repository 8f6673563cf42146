"""Conversion of other people's layouts to JSONL in our words, which datasets/grounding_jsonl.py and datasets/qa_jsonl.py read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mmrl.core.samples import KINDS
from mmrl.data.files.paths import write_jsonl
from mmrl.data.grounding import GroundingLayout
from mmrl.data.layouts.base import BOX, BOXES, PICTURES
from mmrl.data.layouts.fix import boxes_in_pixels
from mmrl.data.layouts.source import Source, guess, open_source
from mmrl.data.layouts.table import NAMES
from mmrl.data.layouts.write import LineWriter, outside_note
from mmrl.data.readers import Cell, Row, as_list
from mmrl.data.validate import Report, strip_markers


@dataclass(frozen=True)
class Conversion:
    """The file that a conversion wrote, and what it left out."""

    out: Path
    num_rows: int
    num_pictures: int
    missing_pictures: int
    """Pictures of written rows that are not where `image_root` says; `mmrl data check` names them."""
    notes: Mapping[str, int]
    """Reason why something was left out or changed -> how often: {"annotations left out: crowd": 3}."""
    layout: str = ""
    """How the source was read."""
    outside: str | None = None
    """A line on pictures outside the folder of `out`, if there are any."""

    def __str__(self) -> str:
        notes = [f"{count} {reason}" for reason, count in sorted(self.notes.items())]
        missing = f"{self.missing_pictures} pictures not found: give image_root" if self.missing_pictures else ""
        lines = [f"{self.out}: {self.num_rows} rows, {self.num_pictures} pictures", self.layout, *notes, missing, self.outside]
        return "\n  ".join(line for line in lines if line)


def source_to_convert(
    path: Path, kind: str | None, question: str, columns: Mapping[str, str] | None, split: str | None, each: bool
) -> Source:
    """The source of a conversion.

    Args:
        path: a file or folder of one of the layouts, for example COCO's instances JSON or RefCOCO's folder.
        kind: its layout, one of `mmrl.data.layouts.table.LAYOUTS` that hold boxes or questions; None: guessed.
        question: for layouts whose boxes have labels in place of questions, the text of a row, with {label} in it.
        columns: our name -> the source's, for the columns that the layout reads.
        split: the split to convert, where a folder has several.
        each: make one row per question of a conversation.

    Raises FileNotFoundError, or ValueError for another layout.
    """
    found = guess(path, columns or {}, kind, split)
    if found.data_set not in NAMES:
        known = dict.fromkeys(name for names in NAMES.values() for name in names)
        raise ValueError(
            f"cannot convert {found.layout!r}, which the data set {found.data_set} reads as it is: choose one of "
            f"{', '.join(known)}"
        )
    opened = open_source(path, found.data_set, found.layout, columns, split, each)
    return replace(opened, guess=found, layout=opened.layout.asking(question))


def convert_source(opened: Source, out: Path, image_root: str | Path | None = None, copy: bool = False) -> Conversion:
    """Write the rows of a source to `out`, whole or not at all. Pictures are opened only where boxes are shares of their sizes.

    Boxes become corners in pixels, and markers of media that begin a question are taken off. Picture paths, which start at
    `image_root` (None: the source's folder), become relative to the folder of `out`, or absolute outside it; pictures that a
    table holds become files in a folder next to it. `copy` brings along the files that rows name.

    Raises ValueError for wrong rows, or where none of the pictures is found.
    """
    source, root = opened.path, Path(image_root) if image_root is not None else opened.root
    report, writer = Report(str(source)), LineWriter(out, root, image_root is None, copy, opened.layout.files)
    lines = list(_lines(opened, writer, report))
    if not report.ok:
        raise ValueError(
            f"{source} was not converted, for these rows (`mmrl data check {source} --fix OUT` leaves them out)\n{report}"
        )
    if not lines:
        raise ValueError(f"{source} gives no rows ({dict(report.notes)}): nothing was written")
    pictures = {picture for line in lines for name in PICTURES for picture in as_list(line.get(name))}
    missing = sum(not (out.parent / picture).is_file() for picture in pictures)
    if pictures and missing == len(pictures):
        raise ValueError(
            f"none of the {missing} pictures of {source} is below {root} (the first is {next(iter(sorted(pictures)))}): give "
            "--image-root where they are; nothing was written"
        )
    write_jsonl({out: lines})
    said = str(opened.guess) if opened.guess.is_guess else ""
    return Conversion(out, len(lines), len(pictures), missing, dict(report.notes), said, outside_note(writer.outside, out.parent))


def _lines(source: Source, writer: LineWriter, report: Report) -> Iterator[dict[str, Cell]]:
    for row in source.rows(report):
        values = row.values
        if source.is_own and source.guess.data_set == BOXES:
            values = {name: value for name, value in values.items() if name not in source.columns.values()}
            values |= {ours: row.values.get(theirs) for ours, theirs in source.columns.items()}
        with report.collecting(row.place):
            media = [kind.value_of("") for kind in KINDS.values() for name in kind.columns for _ in as_list(values.get(name))]
            asked = [strip_markers(one, media) if isinstance(one, str) else one for one in as_list(values.get("question"))]
            values = {**values, "question": asked if isinstance(values.get("question"), list) else next(iter(asked), None)}
            if values.get("space", "pixel") != "pixel":
                values = _with_pixels(replace(row, values=values), GroundingLayout(writer.root, anywhere=writer.anywhere))
            yield writer.line(values)


def _with_pixels(row: Row, layout: GroundingLayout) -> dict[str, Cell]:
    """The row with boxes in pixels of its picture; errors are those of `prompts`."""
    prompt, *_ = layout.prompts(row)
    rest = {name: value for name, value in row.values.items() if name not in (*BOX, "space")}
    return {**rest, "size": prompt.columns["size"], **boxes_in_pixels(prompt)}
