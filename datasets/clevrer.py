"""CLEVRER: questions about colliding objects, some with several right options.

    [{"video_filename": "video_0.mp4", "questions": [
        {"question_type": "counterfactual", "question": "What ..?", "choices": [{"choice": "..", "answer": "correct"}, ..]},
        {"question_type": "descriptive", "question": "How many ..?", "answer": "2"}]}, ..]

Of these two answers are "A" and "2". Licence: that of CLEVRER; nothing is shipped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrl import Prompt
from mmrl.answers.choices import LETTERS
from mmrl.data.inversion import with_inversion
from mmrl.data.layouts.base import note_unused
from mmrl.data.readers import Row, read_json
from mmrl.data.validate import Report
from mmrl.data.video_rows import VideoRow, read_videos, text_of
from mmrl.runtime.ranges import LargeOrNone, Share

_KNOWN = {"question": ("question_type", "question", "choices", "answer"), "question.choices": ("choice", "answer")}
_KINDS = ("descriptive", "explanatory", "predictive", "counterfactual")


def load(
    path: str | Path,
    videos: str | Path | None = None,
    kinds: Sequence[str] = (),
    template: str | None = None,
    max_bad: LargeOrNone = 0,
    invert: Share = 0.0,
) -> Sequence[Prompt]:
    """One prompt per question; the answer is letters such as "A,C", a number or a word.

    Columns: problem_type, question_kind, options, duration, fps.

    Args:
        path: train.json, validation.json or their like.
        videos: the folder that holds the videos, in it or below; the file's folder by default.
        kinds: keep only these of descriptive, explanatory, predictive, counterfactual; () = all.
        template: the prompt's text, with {question} in it; options follow the question.
        max_bad: up to this many bad rows are skipped with a warning; one more is an error.
        invert: this share of the questions with one right option asks for all wrong ones instead (TW-GRPO), where the question
            can be negated; the column `inverted` marks them.

    Raises:
        ValueError: a share outside 0 to 1; or listing the first bad rows with file, video and number of the question.
    """
    parse = with_inversion(_Questions(tuple(kinds)), invert)
    return read_videos(path, videos, _rows, parse, template, max_bad, known=_KNOWN)


def _rows(path: Path, report: Report) -> Iterator[Row]:
    """Rows from `[{"video_filename": "video_0.mp4", "questions": [{..}, ..]}, ..]`, one row per question."""
    videos = read_json(path)
    if not isinstance(videos, list):
        raise ValueError(f"data file {path} must hold a list of videos, not {type(videos).__name__}")
    for i, entry in enumerate(videos, start=1):
        name = entry.get("video_filename") if isinstance(entry, dict) else None
        questions = entry.get("questions") if isinstance(entry, dict) else None
        note_unused(report, {"video": entry}, {"video": ("video_filename", "questions")})
        for number, question in enumerate(questions if isinstance(questions, list) else [None], start=1):
            yield Row({"video": name, "question": question}, f"{path.name}:{name or i}", number)


@dataclass(frozen=True)
class _Questions:
    """Rows of CLEVRER: questions with choices have one right letter or several; the others are answered by a number or a word."""

    kinds: tuple[str, ...] = ()
    """Only these; () = all."""

    def __post_init__(self) -> None:
        if not set(self.kinds) <= set(_KINDS):
            raise ValueError(f"kinds are {', '.join(self.kinds)}: choose from {', '.join(_KINDS)}")

    def __call__(self, row: Row) -> Iterator[VideoRow]:
        video, question = row.values["video"], row.values["question"]
        if not isinstance(video, str) or not isinstance(question, dict):
            raise ValueError("a video needs video_filename and a list of questions")
        values = Row(question, row.source, row.number)
        kind, text, name = text_of(values, "question_type"), text_of(values, "question"), f"{Path(video).stem}-{row.number}"
        if kind not in _KINDS:
            raise ValueError(f"question_type is {kind!r}: only {', '.join(_KINDS)} are understood")
        columns = {"question_kind": kind}
        if self.kinds and kind not in self.kinds:
            return
        if "choices" in question:
            right, options = _choices(question["choices"], row)
            yield VideoRow(name, video, text, "multiple choice", right, options, columns)
        else:
            answer = text_of(values, "answer")
            yield VideoRow(name, video, text, "numerical" if answer.isdecimal() else "free-form", answer, (), columns)


def _choices(found: object, row: Row) -> tuple[str, tuple[str, ...]]:
    """The right letters, and the wordings of all choices."""
    choices = (
        [Row(choice, row.source, row.number) for choice in found if isinstance(choice, dict)] if isinstance(found, list) else []
    )
    verdicts = [text_of(choice, "answer") for choice in choices]
    if not set(verdicts) <= {"correct", "wrong"}:
        raise ValueError(f"choices are {', '.join(sorted(set(verdicts)))}: each must be correct or wrong")
    right = ",".join(letter for letter, verdict in zip(LETTERS, verdicts, strict=False) if verdict == "correct")
    if not right:
        raise ValueError("no choice is correct, so that there is no letter to answer with")
    return right, tuple(text_of(choice, "choice") for choice in choices)
