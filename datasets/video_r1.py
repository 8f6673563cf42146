"""Video-R1: questions of several types about videos and pictures, a JSON list or JSONL.

    {"problem_id": 2, "problem": "What ..?", "data_type": "video", "problem_type": "multiple choice",
     "options": ["A. a cat", "B. a dog"], "solution": "<answer>B</answer>", "path": "./clips/2.mp4"}

Types: multiple choice, numerical, regression, OCR, free-form. The reward `by_type` scores each by its own. Licence: that of
the many collections its videos are from; nothing is shipped.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrl import Prompt
from mmrl.answers.block import answer_block
from mmrl.data.inversion import with_inversion
from mmrl.data.readers import Cell, Row, read_rows
from mmrl.data.video_rows import VideoRow, read_videos, text_of
from mmrl.runtime.ranges import LargeOrNone, Share

_LETTERED = re.compile(r"\(?([A-Z])[).:]\s*")
_COLUMNS = ("problem_id", "problem", "problem_type", "options", "solution", "path", "data_type")


def load(
    path: str | Path,
    videos: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    template: str | None = None,
    max_bad: LargeOrNone = 0,
    invert: Share = 0.0,
) -> Sequence[Prompt]:
    """One prompt per row; the answer is the text inside the solution's tags.

    Columns: problem_type, options, for videos duration and fps, and all others of the file.

    Args:
        path: a .json, .jsonl or .parquet file.
        videos: the folder that paths start from and which none leaves; the file's folder by default, and then absolute paths
            may name any video.
        columns: our name -> the file's, for problem_id, problem, problem_type, options, solution, path and data_type.
        template: the prompt's text, with {question} in it; options follow the question.
        max_bad: up to this many bad rows are skipped with a warning; one more is an error.
        invert: this share of the questions with one right option asks for all wrong ones instead (TW-GRPO), where the question
            can be negated; the column `inverted` marks them.

    Raises:
        ValueError: a share outside 0 to 1; or listing the first bad rows with file and line, among them those of an unknown type.
    """
    parse = with_inversion(_Questions(columns or {}), invert)
    return read_videos(path, videos, read_rows, parse, template, max_bad, anywhere=videos is None)


@dataclass(frozen=True)
class _Questions:
    """Rows of Video-R1: problem, problem_type, options ("A. a dog"), solution ("<answer>A</answer>"), path, data_type."""

    columns: Mapping[str, str]
    """Our name -> the file's, for those six and problem_id."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.columns) - set(_COLUMNS))
        if unknown:
            raise ValueError(f"columns maps {', '.join(unknown)}, which Video-R1's rows do not have: use {', '.join(_COLUMNS)}")

    def __call__(self, row: Row) -> Iterator[VideoRow]:
        options = tuple(_LETTERED.sub("", str(option), count=1) for option in self._get(row, "options") or ())
        data_type, number = self._get(row, "data_type") or "video", self._get(row, "problem_id")
        if data_type not in ("video", "image"):
            raise ValueError(f"data_type is {data_type!r}: only video and image are understood")
        used = {self.columns.get(key, key) for key in _COLUMNS[1:]}
        yield VideoRow(
            str(row.number if number is None else number),
            self._text(row, "path"),
            self._text(row, "problem"),
            self._text(row, "problem_type"),
            answer_block(str(self._get(row, "solution") or "")),
            options,
            {name: value for name, value in row.values.items() if name not in used},
            data_type == "image",
        )

    def _get(self, row: Row, key: str) -> Cell:
        return row.values.get(self.columns.get(key, key))

    def _text(self, row: Row, key: str) -> str:
        return text_of(row, self.columns.get(key, key))
