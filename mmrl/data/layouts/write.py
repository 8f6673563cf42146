"""Rows in our words as lines of JSONL, with the pictures of a table written to files next to it, and prompts as such rows."""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.answers.spans.interval import Interval
from mmrl.core.samples import AUDIO, VIDEO, Prompt, kind_of
from mmrl.data.files.paths import path_below, relative_to
from mmrl.data.files.pictures import PICTURE_SUFFIXES
from mmrl.data.layouts.base import EDITED, MEDIA
from mmrl.data.layouts.source import Guess, Source, layout_called
from mmrl.data.readers import Cell, Row, as_list
from mmrl.data.validate import FILE_ROW
from mmrl.runtime.disk import sha256_of, whole_file
from mmrl.runtime.near import link

SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp", "BMP": ".bmp", "GIF": ".gif", "TIFF": ".tif"}


@dataclass(frozen=True)
class LineWriter:
    """Makes lines for a file: media of rows become paths as seen from its folder, and bytes become files.

    The files of pictures are named by their content, never by what a row calls them.
    """

    out: Path
    root: Path
    """Where the rows' paths start."""
    anywhere: bool = True
    """True lets rows name any file by its absolute path."""
    copy: bool = False
    """True copies the files that rows name into the folder of pictures."""
    files: tuple[str, ...] = MEDIA
    """The columns that hold pictures and clips."""
    outside: set[str] = field(default_factory=set[str], compare=False)
    """Files that rows name by absolute paths, since they lie outside the folder."""

    @property
    def pictures(self) -> Path:
        """The folder for pictures that rows hold as bytes, and for copies."""
        return self.out.with_name(f"{self.out.stem}_pictures")

    def line(self, values: Mapping[str, Cell]) -> dict[str, Cell]:
        """A row as JSON can hold it; ValueError for a picture that is none, a path that leaves the root, or other bytes."""
        line: dict[str, Cell] = {}
        for name, value in values.items():
            if name in self.files:
                moved = [self.media(item) for item in as_list(value) if item is not None]
                if moved:
                    line[name] = moved[0] if len(moved) == 1 else moved
            elif value is not None:
                try:
                    line[name] = plain(value, name)
                except RecursionError:
                    raise ValueError(f"column {name} is nested too deep to be written: leave the column out") from None
        return line

    def media(self, item: Cell) -> Cell:
        """A picture, clip or sound, or a part of a clip; errors are those of `line`."""
        if isinstance(item, dict) and VIDEO.name in item:
            return {**item, VIDEO.name: self.path_of(item[VIDEO.name])}
        return self.path_of(item)

    def path_of(self, item: Cell) -> str:
        """The path of a picture or clip as seen from the folder, absolute outside of it; errors are those of `line`."""
        if isinstance(item, str):
            path = path_below(self.root, item, "image_root", self.anywhere)
            if self.copy:
                return self._bring(path)
            seen = relative_to(item, self.root, self.out.parent)
            self.outside.update([seen] if os.path.isabs(seen) else [])
            return seen
        if isinstance(item, bytes):
            return self._write(item)
        if isinstance(item, Image.Image):
            data = io.BytesIO()
            item.save(data, "PNG")
            return self._write(data.getvalue())
        if isinstance(item, dict) and item.get("bytes"):
            return self._write(item["bytes"])
        if isinstance(item, dict) and isinstance(item.get("path"), str):
            return self.path_of(item["path"])
        raise ValueError(f"a picture must be a path or bytes, not {type(item).__name__}")

    def _write(self, data: bytes) -> str:
        try:
            kind = Image.open(io.BytesIO(data)).format or ""
        except Exception as error:  # noqa: BLE001 - decoders raise whatever a broken file provokes
            raise ValueError(f"a picture of {len(data)} bytes cannot be read: {error}") from None
        if kind not in SUFFIXES:
            raise ValueError(f"a picture is {kind}: only {', '.join(SUFFIXES)} are written")
        return self._put(f"{hashlib.sha256(data).hexdigest()[:24]}{SUFFIXES[kind]}", lambda file: file.write_bytes(data))

    def _bring(self, path: str) -> str:
        """Copy a file under a name made of its content and its ending, which must be that of a picture, clip or sound."""
        ending = Path(path).suffix.lower()
        if ending not in PICTURE_SUFFIXES | VIDEO.suffixes | AUDIO.suffixes:
            raise ValueError(f"{path} does not end as pictures, clips and sounds do, and is not copied: rename it")
        return self._put(f"{file_hash(path)[:24]}{ending}", lambda file: shutil.copyfile(path, file))

    def _put(self, name: str, write: Callable[[Path], object]) -> str:
        """Write a file into the folder of pictures, whole or not at all, unless it exists; returns its path."""
        file = self.pictures / name
        if not file.is_file():
            self.pictures.mkdir(parents=True, exist_ok=True)
            with whole_file(file) as temporary:
                write(temporary)
        return f"{self.pictures.name}/{file.name}"


def file_hash(path: str) -> str:
    """A hash of a file's bytes; FileNotFoundError naming it."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"file {path} does not exist{link(path)}")
    return sha256_of(path)


def outside_note(files: Collection[str], folder: Path) -> str | None:
    """A line on files that lie outside the folder that was written; None without any."""
    if not files:
        return None
    return f"{len(files)} files lie outside {folder} and are named by absolute paths: --copy brings them along"


def plain(value: Cell, name: str) -> Cell:
    """The value as JSON can hold it; ValueError for bytes and other values that JSON cannot hold."""
    if isinstance(value, dict):
        return {str(key): plain(item, name) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, name) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise ValueError(f"column {name} holds {type(value).__name__}, which JSON cannot hold: leave the column out")


def has_spans(prompt: Prompt) -> bool:
    """Are its answers spans in seconds, one or more?"""
    spans = answers_of(prompt)
    return bool(spans) and all(isinstance(span, Interval) and span.unit == "seconds" for span in spans)


def answer_of(prompt: Prompt) -> dict[str, Cell]:
    """The columns of the prompt's answer: spans in seconds, or anything else as it is."""
    if not has_spans(prompt):
        return {"answer": prompt.answer}
    return answer_columns("span", "spans", prompt, lambda span: [span.start, span.end])


def answers_of(prompt: Prompt) -> tuple[Cell, ...]:
    """The prompt's answers, one or several."""
    return prompt.answer if isinstance(prompt.answer, tuple) else (prompt.answer,)


def answer_columns(one: str, several: str, prompt: Prompt, say: Callable[[Cell], Cell]) -> dict[str, Cell]:
    """An answer in the column for one, or a tuple of answers in that for several."""
    if isinstance(prompt.answer, tuple):
        return {several: [say(answer) for answer in prompt.answer]}
    return {one: say(prompt.answer)}


TAUGHT = {"picture": "image", "clip": "video"}
"""Columns of what a generator is taught, and their names in files."""


def prompt_source(path: Path, found: Guess, prompts: Sequence[Prompt]) -> Source:
    """The prompts of a file as a source of rows in our words; ValueError for one that a row cannot express."""
    for prompt in prompts:
        check_writable(prompt)
    rows = [Row(columns_of(prompt), path.name, number) for number, prompt in enumerate(prompts, start=1)]
    return Source(path, replace(layout_called(found.layout), read=lambda path, report: iter(rows)), found)


def check_writable(prompt: Prompt) -> None:
    """Raise ValueError for a prompt that a line of JSONL cannot express: one with another kind of answer, or a part of a clip."""
    if not (has_boxes(prompt) or has_spans(prompt) or is_json(prompt.answer)):
        raise ValueError(
            f"prompt {prompt.id!r} has the answer {str(prompt.answer)[:80]}, which is no box, span, text or number and cannot be "
            "written as JSONL: write its file in your data set"
        )
    for media in prompt.media:
        kind = kind_of(media)
        if kind.source is not None and kind.file_of(media) is None:
            raise ValueError(
                f"prompt {prompt.id!r} shows {media}, which is not a whole file: cut {kind.nouns} into files before writing them"
            )


def has_boxes(prompt: Prompt) -> bool:
    return prompt.answer is not None and all(isinstance(box, Box) for box in answers_of(prompt))


def columns_of(prompt: Prompt) -> dict[str, Cell]:
    """The prompt as a row: of grounding_jsonl, qa_jsonl, edits or prompts, by its answer and columns; paths are absolute."""
    kept = {
        key: value
        for key, value in prompt.columns.items()
        if key not in (FILE_ROW, *TAUGHT) and (is_json(value) or key in EDITED)
    }
    taught = {name: _path(prompt.columns[key]) for key, name in TAUGHT.items() if key in prompt.columns}
    shown = list(map(_path, prompt.media))  # of one kind
    media = {kind_of(prompt.media[0]).name: shown[0] if len(shown) == 1 else shown} if shown else {}
    line: dict[str, Cell] = {**kept, "id": prompt.id, **media, **taught}
    if has_boxes(prompt):
        boxes = answers_of(prompt)
        line |= {"question": prompt.text, **answer_columns("box", "boxes", prompt, _corners)}
        line["space"] = boxes[0].space if boxes else "pixel"
        line.pop("size", None)
    elif "question" in kept:
        line |= {**answer_of(prompt), "kind": line.pop("problem_type", None)}
    else:
        text = "caption" if taught else "instruction" if prompt.media else "prompt"
        line |= {text: prompt.text, **answer_of(prompt)}
    return line


def _path(media: Cell) -> Cell:
    """The absolute path of media that are one whole file, else the media."""
    file = kind_of(media).file_of(media)
    return media if file is None else os.path.abspath(file)


def is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _corners(box: Box) -> Cell:
    return list(box.corners) if box.label is None else {"bbox": list(box.corners), "label": box.label}
