"""NExT-GQA: questions with five options (val.csv), and the spans that show the answer (gsub_val.json).

    video_id,frame_count,width,height,question,answer,qid,type,a0,a1,a2,a3,a4
    {"10001787725": {"duration": 34, "location": {"1": [[1.2, 5.8]]}, "fps": 29.97}, ..}

NExT-QA's files, where the answer is an option's number, are read too. Licence: that of NExT-GQA; nothing is shipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mmrl import Prompt
from mmrl.answers.choices import LETTERS
from mmrl.data.inversion import with_inversion
from mmrl.data.readers import Cell, Row, csv_rows
from mmrl.data.video_rows import VideoRow, object_of, read_videos, span_of, text_of
from mmrl.runtime.ranges import LargeOrNone, Share

_READ = ("video_id", "qid", "question", "answer", "type", "a0", "a1", "a2", "a3", "a4")


def load(
    path: str | Path,
    videos: str | Path | None = None,
    spans: str | Path | None = None,
    ask: Literal["which", "when"] = "which",
    template: str | None = None,
    max_bad: LargeOrNone = 0,
    invert: Share = 0.0,
) -> Sequence[Prompt]:
    """One prompt per row; the answer is a letter (which), or a tuple of Intervals in seconds (when).

    Columns: problem_type, question_kind (CW, TN, ..), duration, fps; for `which` also options, and spans if they are known.

    Args:
        path: the CSV file.
        videos: the folder that holds 10001787725.mp4 and so on, in it or below; the file's folder by default.
        spans: gsub_val.json or its like.
        ask: which option is right, or when the question and its right option are shown.
        template: the prompt's text, with {question} in it.
        max_bad: up to this many bad rows are skipped with a warning; one more is an error.
        invert: this share of the questions `which` asks for all wrong options instead (TW-GRPO), where the question can be
            negated; the column `inverted` marks them.

    Raises:
        ValueError: a share outside 0 to 1, or one above 0 with ask = when; or listing the first bad rows with file and line.
    """
    if ask == "when" and spans is None:
        raise ValueError("asking when needs the file of spans, such as gsub_val.json: set `spans`")
    parse = with_inversion(_Questions({} if spans is None else object_of(Path(spans)), ask == "when"), invert)
    if invert and ask == "when":
        raise ValueError(
            f"invert is {invert}, but ask = 'when' asks for spans, which have no options: set invert = 0 or ask = 'which'"
        )
    return read_videos(path, videos, csv_rows, parse, template, max_bad, known={"": _READ})


@dataclass(frozen=True)
class _Questions:
    """Rows of NExT-GQA's CSV files with the spans of their gsub JSON: letters of five options, or the spans themselves."""

    spans: Mapping[str, Cell]
    """Video -> {"location": {question id: [[start, end], ..]}, ..}; empty for the training split, which has none."""
    asks_when: bool = False

    def __call__(self, row: Row) -> Iterator[VideoRow]:
        video, question_id = (text_of(row, key) for key in ("video_id", "qid"))
        options = tuple(text_of(row, f"a{i}") for i in range(5))
        right = self._right(text_of(row, "answer"), options)
        question, kind = text_of(row, "question"), row.values.get("type")
        found = self.spans.get(video, {}).get("location", {}).get(question_id)
        spans = None if found is None else tuple(map(span_of, found))
        columns = {"question_kind": kind, "spans": spans}
        name = f"{video}-{question_id}"
        if not self.asks_when:
            yield VideoRow(name, video, question, "multiple choice", LETTERS[right], options, columns)
        elif spans is None:
            raise ValueError(f"question {question_id} of video {video} has no span")
        else:
            asked = f"{question} Answer: {options[right]}"
            yield VideoRow(name, video, asked, "temporal grounding", spans, (), {"question_kind": kind})

    def _right(self, answer: str, options: tuple[str, ...]) -> int:
        """The right option's place: NExT-GQA writes its words, NExT-QA its number."""
        if answer in options:
            return options.index(answer)
        if answer.isdecimal() and int(answer) < len(options):
            return int(answer)
        raise ValueError(f"the answer {answer!r} is none of the options {', '.join(options)}")
