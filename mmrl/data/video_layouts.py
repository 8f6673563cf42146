"""Readers of public layouts of questions about videos: row by row, in our words."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mmrl.answers.block import answer_block
from mmrl.answers.choices import LETTERS
from mmrl.answers.spans.interval import Interval
from mmrl.data.readers import Cell, Row, read_json, read_text
from mmrl.data.validate import Report
from mmrl.data.video_rows import VideoRow

_CHARADES = re.compile(r"(\S+)\s+(\S+)\s+(\S+?)\s*##(.*)")
_UNLABELLED = re.compile(r"(\S+?)(?:\s+\S+\s+\S+?)?\s*##(.*)")
CLEVRER_KINDS = ("descriptive", "explanatory", "predictive", "counterfactual")
_LETTERED = re.compile(r"\(?([A-Z])[).:]\s*")


def charades_rows(path: Path, report: Report, labelled: bool = True) -> Iterator[Row]:
    """Rows from lines such as `AO8RW 0.0 6.9##a person is putting a book on a shelf.`; unlabelled, the times are passed over."""
    pattern, keys = (_CHARADES, ("video", "start", "end", "sentence")) if labelled else (_UNLABELLED, ("video", "sentence"))
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        match = pattern.fullmatch(line.strip())
        if match:
            yield Row(dict(zip(keys, match.groups(), strict=True)), path.name, number)
        elif line.strip():
            report.num_rows += 1
            report.add(f"{path.name}:{number}", f"{line.strip()[:60]!r} is not like 'AO8RW 0.0 6.9##a person sits down'")


def activitynet_rows(path: Path, report: Report, labelled: bool = True) -> Iterator[Row]:
    """Rows from `{"v_abc": {"timestamps": [[0.8, 19.9], ..], "sentences": ["A woman ..", ..]}, ..}`, one row per sentence.

    Unlabelled, the timestamps are passed over.
    """
    for video, entry in _object(path).items():
        place = f"{path.name}:{video}"
        times, sentences = (entry.get(key) if isinstance(entry, dict) else None for key in ("timestamps", "sentences"))
        if not labelled and isinstance(sentences, list):
            yield from (Row({"video": video, "sentence": one}, place, number) for number, one in enumerate(sentences, start=1))
            continue
        if not isinstance(times, list) or not isinstance(sentences, list) or len(times) != len(sentences):
            report.num_rows += 1
            report.add(place, "a video needs the lists timestamps and sentences, both of one length")
            continue
        for number, (pair, sentence) in enumerate(zip(times, sentences, strict=True), start=1):
            yield Row({"video": video, "pair": pair, "sentence": sentence}, place, number)


def clevrer_rows(path: Path) -> Iterator[Row]:
    """Rows from `[{"video_filename": "video_0.mp4", "questions": [{..}, ..]}, ..]`, one row per question."""
    videos = read_json(path)
    if not isinstance(videos, list):
        raise ValueError(f"data file {path} must hold a list of videos, not {type(videos).__name__}")
    for i, entry in enumerate(videos, start=1):
        name = entry.get("video_filename") if isinstance(entry, dict) else None
        questions = entry.get("questions") if isinstance(entry, dict) else None
        for number, question in enumerate(questions if isinstance(questions, list) else [None], start=1):
            yield Row({"video": name, "question": question}, f"{path.name}:{name or i}", number)


def charades(row: Row) -> Iterator[VideoRow]:
    values = row.values
    span = Interval(_number(values["start"], "start"), _number(values["end"], "end")) if "start" in values else None
    yield VideoRow(f"{values['video']}-{row.number}", values["video"], values["sentence"], "temporal grounding", span)


def activitynet(row: Row) -> Iterator[VideoRow]:
    video, span = row.values["video"], _span(row.values["pair"]) if "pair" in row.values else None
    yield VideoRow(f"{video}-{row.number}", video, str(row.values["sentence"]), "temporal grounding", span)


@dataclass(frozen=True)
class NextGqa:
    """Rows of NExT-GQA's CSV files with the spans of their gsub JSON: letters of five options, or the spans themselves."""

    spans: Mapping[str, Cell]
    """Video -> {"location": {question id: [[start, end], ..]}, ..}; empty for the training split, which has none."""
    asks_when: bool = False

    @classmethod
    def of(cls, spans: Path | None, asks_when: bool) -> "NextGqa":
        if asks_when and spans is None:
            raise ValueError("asking when needs the file of spans, such as gsub_val.json: set `spans`")
        return cls({} if spans is None else _object(spans), asks_when)

    def __call__(self, row: Row) -> Iterator[VideoRow]:
        video, question_id = (_require(row, key) for key in ("video_id", "qid"))
        options = tuple(_require(row, f"a{i}") for i in range(5))
        right = self._right(_require(row, "answer"), options)
        question, kind = _require(row, "question"), row.values.get("type")
        found = self.spans.get(video, {}).get("location", {}).get(question_id)
        spans = None if found is None else tuple(map(_span, found))
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


@dataclass(frozen=True)
class VideoR1:
    """Rows of Video-R1: problem, problem_type, options ("A. a dog"), solution ("<answer>A</answer>"), path, data_type."""

    columns: Mapping[str, str]
    """Our name -> the file's, for those six and problem_id."""

    def __post_init__(self) -> None:
        known = ("problem_id", "problem", "problem_type", "options", "solution", "path", "data_type")
        unknown = sorted(set(self.columns) - set(known))
        if unknown:
            raise ValueError(f"columns maps {', '.join(unknown)}, which Video-R1's rows do not have: use {', '.join(known)}")

    def __call__(self, row: Row) -> Iterator[VideoRow]:
        options = tuple(_LETTERED.sub("", str(option), count=1) for option in self._get(row, "options") or ())
        data_type, number = self._get(row, "data_type") or "video", self._get(row, "problem_id")
        if data_type not in ("video", "image"):
            raise ValueError(f"data_type is {data_type!r}: only video and image are understood")
        used = {self.columns.get(key, key) for key in ("problem", "options", "solution", "path", "problem_type", "data_type")}
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
        return _require(row, self.columns.get(key, key))


@dataclass(frozen=True)
class Clevrer:
    """Rows of CLEVRER: questions with choices have one right letter or several; the others are answered by a number or a word."""

    kinds: tuple[str, ...] = ()
    """Only these; () = all."""

    def __post_init__(self) -> None:
        if not set(self.kinds) <= set(CLEVRER_KINDS):
            raise ValueError(f"kinds are {', '.join(self.kinds)}: choose from {', '.join(CLEVRER_KINDS)}")

    def __call__(self, row: Row) -> Iterator[VideoRow]:
        video, question = row.values["video"], row.values["question"]
        if not isinstance(video, str) or not isinstance(question, dict):
            raise ValueError("a video needs video_filename and a list of questions")
        values = Row(question, row.source, row.number)
        kind, text, name = _require(values, "question_type"), _require(values, "question"), f"{Path(video).stem}-{row.number}"
        if kind not in CLEVRER_KINDS:
            raise ValueError(f"question_type is {kind!r}: only {', '.join(CLEVRER_KINDS)} are understood")
        columns = {"question_kind": kind}
        if self.kinds and kind not in self.kinds:
            return
        if "choices" in question:
            right, options = _choices(question["choices"], row)
            yield VideoRow(name, video, text, "multiple choice", right, options, columns)
        else:
            answer = _require(values, "answer")
            yield VideoRow(name, video, text, "numerical" if answer.isdecimal() else "free-form", answer, (), columns)


def _choices(found: object, row: Row) -> tuple[str, tuple[str, ...]]:
    """The right letters, and the wordings of all choices."""
    choices = (
        [Row(choice, row.source, row.number) for choice in found if isinstance(choice, dict)] if isinstance(found, list) else []
    )
    verdicts = [_require(choice, "answer") for choice in choices]
    if not set(verdicts) <= {"correct", "wrong"}:
        raise ValueError(f"choices are {', '.join(sorted(set(verdicts)))}: each must be correct or wrong")
    right = ",".join(letter for letter, verdict in zip(LETTERS, verdicts, strict=False) if verdict == "correct")
    if not right:
        raise ValueError("no choice is correct, so that there is no letter to answer with")
    return right, tuple(_require(choice, "choice") for choice in choices)


def _require(row: Row, key: str) -> str:
    """The text of a column; numbers count as text."""
    value = row.values.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"column {key} is {value!r} (the row has {', '.join(map(str, row.values))})")
    return value.strip()


def _span(pair: object) -> Interval:
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError(f"a span must be two numbers, not {pair!r}")
    return Interval(_number(pair[0], "start"), _number(pair[1], "end"))


def _number(value: Cell, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} is {value!r}, which is no number that a clip could have") from None


def _object(path: Path) -> dict[str, Cell]:
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"data file {path} must hold one object with a key per video, not {type(values).__name__}")
    return values
