"""A look at every row before training starts; bad ones are named by file and line."""

import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from mmrl.answers.block import items_of
from mmrl.answers.boxes.box import Box, check_inside
from mmrl.answers.questions import true_letters, true_number, true_text
from mmrl.answers.spans.attempts import true_spans
from mmrl.answers.spans.interval import Interval
from mmrl.answers.spans.sounds import check_sound
from mmrl.core.samples import KINDS, Audio, is_named, kind_of
from mmrl.core.types import MediaSize, Prompt, Video
from mmrl.data.files.ahead import Watch, ahead, same
from mmrl.data.files.paths import refuse_url
from mmrl.data.files.pictures import PICTURE_SUFFIXES, picture_notes, picture_size
from mmrl.data.files.videos import check_video
from mmrl.runtime.near import link

SPAN_SLACK = 1.0
"""Seconds by which a true span may end after its clip: annotations and containers count differently."""
LONGEST_RATIO = 200
"""Largest ratio of a picture's sides: Qwen's processors refuse more, and nothing can be seen in such a picture."""
_TOKENS = re.compile(
    r"<\|[^\s|<>]{1,40}\|>|<(?:image_soft_token|start_of_image|end_of_image|IMG_CONTEXT|fake_token_around_image|global-img)>"
)
"""Special tokens as models spell them: `<|image_pad|>`, `<|im_end|>`, `<start_of_image>`."""
_HALF = re.compile("[\ud800-\udfff]")
_LOST = re.compile(r"picture .* does not exist")
ELSEWHERE = (
    "none of the pictures is there: their paths start at the file's folder unless --image-root FOLDER (in a config "
    "image_root = FOLDER) says otherwise"
)
MOST_NAMES = 20
"""Keys and columns that a report lists."""
_LONGEST = 600
"""Characters of a problem that are kept; rows may hold whole pictures."""
_NAMED = 5
"""Places that are named of what was left out for one reason."""
_LEFT_OUT = "annotations left out: {}"
Measured = tuple[Sequence[tuple[int, int]], Sequence[float]]
"""Widths and heights of pictures, and seconds of clips, then of sounds."""
BAD_ROW = (ValueError, OSError, OverflowError)
"""Errors that are one row's fault; others are ours."""
FILE_ROW = "file_row"
"""The column of a prompt that says where it comes from: "boxes.jsonl:12"."""

_TRUE = {"choice": true_letters, "number": true_number, "regression": true_number, "span": true_spans}
"""Kind of a question -> what reads its answer; others are texts."""


@dataclass(frozen=True)
class Problem:
    """One bad row: `Problem("boxes.jsonl:12", "picture cat.jpg does not exist")`."""

    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


NumberedPrompt = tuple[int, Prompt | Problem]
"""A prompt of a data set, or what is wrong with it, and its number from 1 on."""


@dataclass
class Report:
    """Problems that a look at a data set found; keeps the first `limit` problems and counts all."""

    source: str
    limit: int = 20
    num_rows: int = 0
    num_problems: int = 0
    problems: list[Problem] = field(default_factory=list[Problem])
    duplicates: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(place, place before it) of rows that say exactly the same."""
    notes: Counter[str] = field(default_factory=Counter[str])
    """What was left out or changed without being a problem -> how often: {"annotations left out: crowd (7 of a.json)": 1}."""
    unused: Counter[str] = field(default_factory=Counter[str])
    """Keys inside rows that nothing reads -> how often: {"objects.width": 3}."""
    kept: Counter[str] = field(default_factory=Counter[str])
    """Columns that only rewards may read."""
    num_kept: int = 0
    """Annotations that were used, in layouts with several to a row."""
    losses: str | None = None
    """The problem that more than a tenth of the annotations cannot be used."""
    _lost: Counter[str] = field(default_factory=Counter[str])
    _places: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    _first: dict[Hashable, str] = field(default_factory=dict[Hashable, str])
    _taken: int = 0
    """Problems already taken over from another report."""

    def __str__(self) -> str:
        lines = [f"{self.source}: {self.num_rows} rows, {self.num_problems} problems", *map(str, self.problems)]
        hidden = self.num_problems - len(self.problems)
        return "\n  ".join([*lines, f"and {hidden} more"] if hidden else lines)

    @property
    def ok(self) -> bool:
        return self.num_problems == 0

    def add(self, place: str, text: str, counts: bool = False) -> None:
        """Note a problem; with `counts` it counts a row."""
        self.num_problems += 1
        self.num_rows += counts
        if len(self.problems) < self.limit:
            short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
            self.problems.append(
                Problem(place, "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in short))
            )

    @property
    def noted(self) -> list[str]:
        """A line per note: `3 annotations left out: crowd`."""
        return [f"{count} {note}" for note, count in sorted(self.notes.items())]

    @property
    def ignored(self) -> list[str]:
        """Lines on what mmrl itself does not read of the rows."""
        found = (("keys that are not read", self.unused), ("columns for rewards alone", self.kept))
        return [f"{what}: {_listed(names)}" for what, names in found if names]

    def note_pictures(self, media: Iterable[object], decode: bool) -> None:
        """Count the pictures that are not shown as they are stored; those that cannot be read raise as in `picture_notes`."""
        self.notes.update(note for one in media if _is_picture(one) for note in picture_notes(one, decode))

    def take_over(self, other: "Report", count: int) -> None:
        """Add the first `count` problems of another report, except those taken over before."""
        for i in range(self._taken, count):
            # beyond the other's limit there is no text, and here no room for it
            problem = other.problems[i] if i < len(other.problems) else Problem(other.source, "")
            self.add(problem.place, problem.text)
        self._taken = max(self._taken, count)

    def note_duplicate(self, prompt: Prompt, place: str) -> None:
        """Remember the prompt; note it if one with the same files, text and answer came before."""
        if not all(map(is_named, prompt.media)):
            return
        key = (prompt.text, tuple(map(str, prompt.media)), repr(prompt.answer))
        first = self._first.setdefault(key, place)
        if first != place:
            self.duplicates.append((place, first))

    def refuse_duplicates(self) -> None:
        """Turn every duplicate into a problem, for checks of a file; a run only warns."""
        for place, first in self.duplicates:
            self.add(place, f"the row says exactly what {first} says: remove one of them")

    @contextmanager
    def collecting(self, place: str, counts: bool = False) -> Iterator[None]:
        """Turn a ValueError, OSError or OverflowError raised inside into a problem at `place`; with `counts` it counts a row."""
        try:
            yield
        except BAD_ROW as error:
            self.add(place, str(error), counts)

    def leave_out(self, why: str, place: str, by_design: bool = False) -> None:
        """Count an annotation that is not used, and remember its place; `by_design` where nothing is wrong with it."""
        self.notes[_LEFT_OUT.format(why)] += 1
        self._lost.update([] if by_design else [why])
        places = self._places.setdefault(why, [])
        places += [place] if len(places) < _NAMED else []

    def close_losses(self) -> None:
        """Say in the notes where annotations were left out, and add a problem where more than a tenth of all had to be."""
        for why, places in self._places.items():
            count = self.notes.pop(_LEFT_OUT.format(why))
            self._places[why] = [f"{why} ({', '.join(places)}{', ..' if count > len(places) else ''})"]
            self.notes[_LEFT_OUT.format(*self._places[why])] = count
        lost = self._lost.total()
        if lost * 10 > lost + self.num_kept:
            reasons = "; ".join(self._places[why][0] for why in self._lost)
            self.losses = f"{lost} of {lost + self.num_kept} annotations cannot be used, more than a tenth: {reasons}"
            self.add(self.source, self.losses)

    def note_if_empty(self) -> None:
        """Add a problem if there were no rows at all."""
        if self.num_rows == 0 and self.ok:
            self.add(self.source, "; ".join(["holds no rows", *self.noted]))

    def raise_if_bad(self) -> None:
        """Raise ValueError that lists the first problems, if there are any; an empty data set is one."""
        self.note_if_empty()
        if not self.ok:
            # where none of the pictures is found, the folder is the wrong one
            is_lost = self.num_rows == self.num_problems and all(_LOST.fullmatch(problem.text) for problem in self.problems)
            remedy = f"\n  {ELSEWHERE}" if is_lost else ""
            raise ValueError(f"the data set cannot be trained on; fix or remove these rows\n{self}{remedy}")


def check(
    prompts: Iterable[Prompt], limit: int = 20, decode: bool = True, max_rows: int | None = None, watch: Watch = same
) -> Report:
    """Look at every prompt, of any data set: text, ids, pictures and videos, boxes inside pictures, spans inside videos.

    With `decode` pictures are read to their end, and of videos the first and the last frame; threads do so for the next prompts.
    The caller decides with `raise_if_bad` or `ok`. `max_rows` bounds the look at a stream, and `watch` sees the rows go by.
    """
    report, ids = Report("data set", limit), set[str]()

    def measure(row: NumberedPrompt) -> Measured:
        return ((), ()) if isinstance(row[1], Problem) else _measure(row[1], decode)

    for (number, prompt), measured in watch(ahead(_enumerate_prompts(prompts, max_rows), measure)):
        if isinstance(prompt, Problem):
            report.add(prompt.place, prompt.text)
            continue
        place = str(prompt.columns.get(FILE_ROW, f"row {number}"))
        report.num_rows += 1
        with report.collecting(place):
            check_new_id(prompt, ids)
            _check_prompt(prompt, measured)
            report.note_duplicate(prompt, place)
            report.note_pictures(prompt.media, decode)
    report.note_if_empty()
    return report


def check_new_id(prompt: Prompt, seen: set[str]) -> None:
    """Remember the prompt's id; ValueError if it was seen before."""
    if prompt.id in seen:
        raise ValueError(f"id {prompt.id!r} was used before: ids must differ")
    seen.add(prompt.id)


def check_answer(prompt: Prompt, kind: str) -> None:
    """Raise ValueError for an answer that the reward for its kind cannot read; none is fine."""
    true_of: Callable[[Prompt], object] = _TRUE.get(kind, true_text)
    if prompt.answer is not None:
        true_of(prompt)


def check_markers(text: str, media: Sequence[object]) -> None:
    """Raise ValueError unless the text holds no marker of a kind of media, or one for each."""
    held = list(map(kind_of, media))
    for kind in KINDS.values():
        num_markers, num_media = text.count(kind.marker), held.count(kind)
        if num_markers not in (0, num_media):
            raise ValueError(
                f"the text has {num_markers} {kind.marker} markers for {num_media} {kind.stored}s: write none or one for each"
            )


def strip_markers(text: str, media: Sequence[object]) -> str:
    """The text without the markers that it begins with, if there is one for each of its media: media come first anyway."""
    rest = text.lstrip()
    for one in media:
        if not rest.startswith(kind_of(one).marker):
            return text
        rest = rest.removeprefix(kind_of(one).marker).lstrip()
    return rest if rest and not any(kind.marker in rest for kind in KINDS.values()) else text


def check_tokens(text: str) -> None:
    """Raise ValueError for a text that spells a special token, taken for a picture or the end of a turn, or that is no text."""
    check_halves(text)
    found = _TOKENS.search(text)
    if found:
        raise ValueError(f"the text spells {found[0]}, which models read as a token of their own: write it in other words")


def check_halves(text: str) -> None:
    """Raise ValueError for a text with half of a surrogate pair, which no tokenizer and no file takes."""
    found = _HALF.search(text)
    if found:
        raise ValueError(
            f"the text {text[:40]!r} holds {ascii(found[0])[1:-1]}, half of a character, at {found.start()}: write the character "
            "out, or drop it (a text was cut in the middle of it)"
        )


def check_shape(size: tuple[int, int]) -> None:
    """Raise ValueError for a picture (width, height) that models' processors refuse, or that shows nothing."""
    if max(size) >= LONGEST_RATIO * min(size) or max(size) < 2:
        raise ValueError(
            f"the picture has {size[0]} x {size[1]} pixels, which models cannot be shown: sides must be 2 or more pixels, and "
            f"the longer one less than {LONGEST_RATIO} times the shorter"
        )


def _enumerate_prompts(prompts: Iterable[Prompt], max_rows: int | None) -> Iterator[NumberedPrompt]:
    """Prompts counted from 1; one that cannot be built is a problem, and ends a stream but not a sequence."""
    if hasattr(prompts, "__getitem__") and hasattr(prompts, "__len__"):
        rows = cast(Sequence[Prompt], prompts)
        for i in range(len(rows) if max_rows is None else min(max_rows, len(rows))):
            try:
                yield i + 1, rows[i]
            except BAD_ROW as error:
                yield i + 1, Problem(f"row {i + 1}", str(error))
        return
    number = 0
    try:
        for number, prompt in enumerate(prompts, start=1):
            yield number, prompt
            if number == max_rows:
                return
    except BAD_ROW as error:
        yield number + 1, Problem(f"the row after row {number}", str(error))


def _measure(prompt: Prompt, decode: bool) -> Measured:
    """The sizes of a prompt's pictures, and the seconds of its clips, then of its sounds."""
    clips = [check_video(media, min_frames=1, decode=decode).seconds for media in prompt.media if isinstance(media, Video)]
    sounds = [check_sound(media, decode) for media in prompt.media if isinstance(media, Audio)]
    sizes = [size for media in prompt.media if (size := _media_size(media, decode)) is not None]
    for size in sizes:
        check_shape(size)
    return sizes, [*clips, *sounds]


def _check_prompt(prompt: Prompt, measured: Callable[[], Measured]) -> None:
    text: object = prompt.text
    if not isinstance(text, str):
        raise ValueError(f"the text is {type(text).__name__} and must be a string")
    if not text.strip() and not prompt.media:
        raise ValueError("there is neither text nor a picture or video")
    check_tokens(text)
    for part in (prompt.id, prompt.answer, *prompt.columns.values()):
        check_halves(part if isinstance(part, str) else "")
    check_markers(text, prompt.media)
    sizes, lengths = measured()
    for answer in items_of(prompt.answer):
        if isinstance(answer, Box) and sizes:
            check_inside(answer, MediaSize(*sizes[0], *sizes[0]))
        if isinstance(answer, Interval) and answer.unit == "seconds" and lengths and answer.end > lengths[0] + SPAN_SLACK:
            raise ValueError(f"{answer} lies outside the clip, which lasts {lengths[0]:.2f} seconds")


def _listed(names: Counter[str]) -> str:
    """The most frequent names, each with its number."""
    hidden = len(names) - MOST_NAMES
    listed = [f"{name} ({count})" for name, count in names.most_common(MOST_NAMES)]
    return ", ".join([*listed, f"and {hidden} more"] if hidden > 0 else listed)


def _is_picture(media: object) -> bool:
    """Is it a picture of PIL, or a path that ends like one's?"""
    if isinstance(media, str | Path):
        return os.path.splitext(media)[1].lower() in PICTURE_SUFFIXES
    return hasattr(media, "getbands")


def _media_size(media: object, decode: bool) -> tuple[int, int] | None:
    """Width and height of a picture; None for anything else, of which only its file must exist."""
    if isinstance(media, str | Path):
        refuse_url(str(media))
    if _is_picture(media):
        return picture_size(media, decode)
    if (file := kind_of(media).file_of(media)) is not None and not Path(file).exists():
        raise FileNotFoundError(f"{file} does not exist{link(file)}")
    return None
