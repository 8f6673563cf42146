"""Prompts of any data set as rows in our words, for files that only that data set reads."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mmrl.answers.boxes.box import Box
from mmrl.core.samples import kind_of
from mmrl.core.types import Prompt
from mmrl.data.layouts.base import EDITED
from mmrl.data.layouts.source import Guess, Source, layout_called
from mmrl.data.layouts.write import answer_columns, answer_of, answers_of, has_spans
from mmrl.data.readers import Cell, Row
from mmrl.data.validate import FILE_ROW

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
    line: dict[str, Cell] = {**kept, "id": prompt.id, **media_of(prompt), **taught}
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


def media_of(prompt: Prompt) -> dict[str, Cell]:
    """The column of its media, with absolute paths; a row holds media of one kind."""
    shown = list(map(_path, prompt.media))
    return {kind_of(prompt.media[0]).name: shown[0] if len(shown) == 1 else shown} if shown else {}


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
