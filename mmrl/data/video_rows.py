"""Prompts from rows that ask about a video: the file is found, its length read and the answer checked."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from mmrl.answers.choices import LETTERS
from mmrl.answers.questions import problem_type
from mmrl.answers.spans.interval import Interval
from mmrl.core.samples import VIDEO
from mmrl.core.types import Prompt, Video
from mmrl.data.files.ahead import FileMemory
from mmrl.data.files.paths import path_below
from mmrl.data.files.pictures import picture_size
from mmrl.data.files.videos import VideoFacts, probe_video
from mmrl.data.layouts.base import Known, note_unused
from mmrl.data.readers import Cell, Row, read_json
from mmrl.data.validate import FILE_ROW, SPAN_SLACK, Report, check_answer, check_new_id
from mmrl.runtime.near import near

WHEN = "{question}\nWhen does this happen? Answer in seconds, as in <answer>12.5 to 17.0</answer>."
CHOOSE = "{question}\nAnswer with the letters of all right options, as in <answer>A,C</answer>."
ANSWER = "{question}\nWrite your answer as <answer>..</answer>."
_FACTS: FileMemory[VideoFacts] = FileMemory()


@dataclass(frozen=True)
class VideoRow:
    """One question of a file, in our words: `VideoRow("7", "AO8RW", "a person sits", "temporal grounding", Interval(2, 6))`."""

    id: str
    media: str
    """The video (or picture) as the file names it: a path, a file's name, or a name without its ending."""
    question: str
    problem_type: str
    answer: object
    """None: data without labels."""
    options: tuple[str, ...] = ()
    """The wordings of A, B, ..."""
    columns: Mapping[str, object] = field(default_factory=dict[str, object])
    is_picture: bool = False


@dataclass(frozen=True)
class VideoFolder:
    """A folder with videos, in it or in folders below it."""

    root: Path
    anywhere: bool = False
    """True lets rows name any file by its absolute path."""

    def find(self, name: str) -> Path:
        """The file of that name, with one of the usual endings if the name has none.

        Raises FileNotFoundError, or ValueError where several files of that name lie in different folders, or outside.
        """
        names = [name] if Path(name).suffix.lower() in VIDEO.suffixes else [name + suffix for suffix in sorted(VIDEO.suffixes)]
        for candidate in names:
            path = self.resolve(candidate)
            if path.is_file():
                return path
        found = [path for candidate in names for path in self._below.get(Path(candidate).name, ())]
        if len(found) > 1:
            raise ValueError(f"video {name} is in {len(found)} folders below {self.root}: {', '.join(map(str, found[:3]))}")
        if not found:
            raise FileNotFoundError(
                f"video {name} is nowhere below {self.root}: looked for {', '.join(Path(n).name for n in names)}"
            )
        return self.resolve(str(found[0].relative_to(self.root)))

    def resolve(self, name: str) -> Path:
        """The path of a file; ValueError if it leaves the folder."""
        return Path(path_below(self.root, name, "videos", self.anywhere))

    @cached_property
    def _below(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in sorted(self.root.rglob("*")):
            if path.suffix.lower() in VIDEO.suffixes:
                found.setdefault(path.name, []).append(path)
        return found


class VideoPrompts(list[Prompt]):
    """Prompts, and the keys inside their rows that nothing reads -> how often."""

    unused: Mapping[str, int]


def read_videos(
    path: str | Path,
    videos: str | Path | None,
    rows: Callable[[Path, Report], Iterable[Row]],
    parse: Callable[[Row], Iterable[VideoRow]],
    template: str | None = None,
    max_bad: int = 0,
    anywhere: bool = False,
    known: Known = MappingProxyType({}),
) -> VideoPrompts:
    """Read all good prompts of a file, in its order.

    Args:
        videos: the folder that holds them; None: the file's.
        rows: of the file; bad ones go into the report.
        parse: what a row asks; ValueError for a row that asks nothing we understand.
        template: the prompt's text, with {question} in it; one for the type of the question by default.
        max_bad: up to n bad rows are left out with a warning that names the first; one more is a ValueError that lists them.
        anywhere: True lets rows name videos outside the folder, by absolute paths.
        known: the keys that `parse` reads, by their place in a row.
    """
    if template is not None and "{question}" not in template:
        raise ValueError(f"template {template!r} must contain {{question}}")
    file, report = Path(path), Report(str(path))
    folder = file.parent if videos is None else Path(videos)
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder of videos {folder} does not exist{near(folder)}: set `videos`")
    found, prompts, ids = VideoFolder(folder, anywhere), VideoPrompts(), set[str]()
    for row in rows(file, report):
        report.num_rows += 1
        note_unused(report, row.values, known)
        with report.collecting(row.place):
            for asked in parse(row):
                prompt = _prompt(asked, row.place, found, template)
                check_new_id(prompt, ids)
                prompts.append(prompt)
    report.note_if_empty()
    if report.num_problems > max_bad or not prompts:
        report.raise_if_bad()
    if not report.ok:
        warnings.warn(f"left out {report.num_problems} bad rows of at most {max_bad}\n{report}", stacklevel=3)
    prompts.unused = report.unused
    return prompts


def _prompt(row: VideoRow, place: str, videos: VideoFolder, template: str | None) -> Prompt:
    columns = {**row.columns, "question": row.question, "problem_type": row.problem_type, FILE_ROW: place}
    if row.options:
        columns["options"] = row.options
    listed = "".join(f"\n{letter}. {option}" for letter, option in zip(LETTERS, row.options, strict=False))
    answer, media = row.answer, str(videos.resolve(row.media)) if row.is_picture else None
    if media is not None:
        picture_size(media)
    else:
        path = videos.find(row.media)
        facts = _FACTS(path, lambda: probe_video(path))
        columns |= {"duration": facts.seconds, "fps": facts.fps}
        answer, media = inside_clip(row.answer, facts.seconds), Video(str(path))
    kind = problem_type(Prompt(row.id, columns=columns))
    form = template or {"span": WHEN, "choice": CHOOSE}.get(kind, ANSWER)
    prompt = Prompt(row.id, form.replace("{question}", row.question.strip() + listed), (media,), answer, columns)
    if not row.question.strip():
        raise ValueError("the question is empty")
    check_answer(prompt, kind)
    return prompt


def inside_clip(answer: object, seconds: float) -> object:
    """Spans cut at the clip's end; ValueError for one that lies further outside."""
    if isinstance(answer, tuple):
        return tuple(inside_clip(span, seconds) for span in answer)
    if not isinstance(answer, Interval):
        return answer
    cut = answer.clamped(seconds)
    if cut is None or answer.end > seconds + SPAN_SLACK:
        raise ValueError(f"{answer} lies outside the clip, which lasts {seconds:.2f} seconds")
    return cut


def text_of(row: Row, key: str) -> str:
    """A column as text, numbers included; ValueError if it is empty."""
    value = row.values.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"column {key} is {value!r} (the row has {', '.join(map(str, row.values))})")
    return value.strip()


def spans_of(found: Cell) -> Interval | tuple[Interval, ...]:
    """One true span or several: `[2.0, 5.5]`, `[[2.0, 5.5], [8.0, 9.0]]`; ValueError for anything else."""
    pairs = found if isinstance(found, list) else []
    single = len(pairs) == 2 and not isinstance(pairs[0], list)
    try:
        spans = tuple(map(span_of, [pairs] if single else pairs))
    except ValueError as error:
        raise ValueError(f"spans are {str(found)[:80]}: write pairs of seconds, [[2.0, 5.5]] ({error})") from None
    if not spans:
        raise ValueError(f"spans are {str(found)[:80]}: write pairs of seconds, [[2.0, 5.5]]")
    return spans[0] if len(spans) == 1 else spans


def span_of(pair: object) -> Interval:
    """The span of two numbers of seconds; ValueError for anything else."""
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError(f"a span must be two numbers, not {pair!r}")
    return Interval(number_of(pair[0], "start"), number_of(pair[1], "end"))


def number_of(value: Cell, name: str) -> float:
    """A number of seconds; ValueError, which calls it `name`, for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} is {value!r}, which is no number that a clip could have") from None


def object_of(path: Path) -> dict[str, Cell]:
    """The entries of a JSON file, by video; ValueError for a list."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"data file {path} must hold one object with a key per video, not {type(values).__name__}")
    return values
