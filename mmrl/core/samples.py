"""Prompts and their kinds of media, samples, groups and answers: the words of rewards and data sets.

Imports the standard library only, so a reward may run in an environment of its own, without torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple

Role = Literal["policy", "injected", "replayed", "probe", "note"]
"""policy: sampled now; injected: given from outside, or written with help from outside; replayed: from an earlier step; probe:
scored, never trained; note: written for the planner, neither scored nor trained."""

Who = Literal["policy", "environment", "forced"]
"""policy: sampled, or given and trained all the same; environment: what the world answered, and the chat template's marks around
it; forced: given, and the policy went on from there."""

Media = Any
"""A picture (a path or a PIL image), frames (an array), a `Video` or an `Audio`; their libraries are not imported here."""
Value = Any
"""Whatever a data set and its rewards agree on: a text, a number, a `Box`, a list of these."""

Ended = Literal["stop", "length", "turns", "room", "done", "error"]
"""Why an episode ended. stop: the last turn asked the world for nothing; length: a token limit cut it; turns: it asked for more,
and had no turn left; room: the observation exceeds a limit; done: the world ended it; error: the world broke."""


class Status(IntEnum):
    """How a reward answered for one sample."""

    OK = 0
    NA = 1
    """The reward answered None: it does not apply."""
    FAILED = 2
    """The reward raised, timed out or answered NaN."""


class MediaSize(NamedTuple):
    """Width and height of one picture in its file, and as the model saw it, in pixels."""

    width: int
    height: int
    seen_width: int
    seen_height: int


class ClipTime(NamedTuple):
    """Time of one clip as the model saw it: `ClipTime(10.0, 25.0, 20)`. Second 0 is where the part that was shown begins."""

    seconds: float
    """How long the part that was shown lasts."""
    fps: float
    """Frames per second of the file, on average."""
    frames: int
    """How many frames the model saw."""


@dataclass(frozen=True)
class Video:
    """A clip as a prompt names it: which file, which part of it, how many of its frames. `Video("a.mp4", fps=2.0, end=30.0)`."""

    source: str | tuple[str, ...]
    """A video file, or the pictures of an image sequence in order."""
    start: float | None = None
    """Seconds from the beginning of the file; None: its beginning."""
    end: float | None = None
    """Seconds from the beginning of the file; None: its end."""
    fps: float | None = None
    """Frames to sample per second (of an image sequence: how fast it was taken); None: the policy's setting."""
    frames: int | None = None
    """Frames to sample in all, evenly; excludes fps."""
    shuffle: int | None = None
    """Seed of a permutation of the sampled frames; None: in order of time (T-GRPO's probes shuffle)."""
    noise: tuple[float, int] | None = None
    """Gaussian noise on the sampled frames: its deviation in shares of a pixel's range, and its seed (DeepVideo-R1)."""


@dataclass(frozen=True)
class Audio:
    """A sound as a prompt names it: `Audio("a.wav", start=2.0, end=12.0)`, or that of a clip's file."""

    source: str
    """A file with sound."""
    start: float | None = None
    """Seconds from the beginning of the file; None: its beginning."""
    end: float | None = None
    """Seconds from the beginning of the file; None: its end."""


@dataclass(frozen=True)
class MediaKind:
    """One kind of media: `MediaKind("tone", "tone", "tone", Tone, frozenset({".tone"}))`."""

    name: str
    """The word of its marker, `<image>`, of its columns, and of the parts of a chat."""
    noun: str
    """The word for one of them in messages."""
    stored: str
    """Its word in samples files and in messages about files."""
    source: type | None = None
    """The dataclass whose values are one; None: a path or the thing itself, as pictures are."""
    suffixes: frozenset[str] = frozenset()
    """Endings of the files that are one."""
    files: str = ""
    """The field of `source` that names one file or a tuple of them; they travel as bytes. Empty: it names none."""

    @property
    def nouns(self) -> str:
        return f"{self.noun}s"

    @property
    def marker(self) -> str:
        """Its place in the text of a prompt."""
        return f"<{self.name}>"

    @property
    def columns(self) -> tuple[str, str]:
        """Names that a data set has for one of them, and for several."""
        return self.name, f"{self.name}s"

    def holds(self, media: object) -> bool:
        """Is this one of a prompt's media of this kind?"""
        if isinstance(media, str | Path):
            return Path(media).suffix.lower() in self.suffixes
        return self.source is not None and isinstance(media, self.source)

    def value_of(self, media: object) -> object:
        """The same as a value of `source`, where media are the path of a file."""
        return self.source(str(media)) if self.source is not None and isinstance(media, str | Path) else media

    def file_of(self, media: object) -> str | None:
        """The path of media that are one whole file; None for others."""
        if isinstance(media, str | Path):
            return str(media)
        file = getattr(media, self.files) if self.files else None
        return file if isinstance(file, str) and self.source is not None and media == self.source(file) else None


IMAGE = MediaKind("image", "picture", "picture")
VIDEO = MediaKind("video", "clip", "video", Video, frozenset({".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v"}), "source")
SOUND_FILES = frozenset({".wav", ".mp3", ".flac", ".ogg", ".opus", ".m4a", ".aac"})
AUDIO = MediaKind("audio", "sound", "sound", Audio, SOUND_FILES, "source")
KINDS = {kind.name: kind for kind in (IMAGE, VIDEO, AUDIO)}


def kind_of(media: object) -> MediaKind:
    """The kind of one of a prompt's media; what no other kind holds is a picture."""
    return next((kind for kind in KINDS.values() if kind.holds(media)), IMAGE)


def is_named(media: object) -> bool:
    """Is it identified by its path or fields, so that equal ones mean equal media?"""
    return isinstance(media, str | Path) or kind_of(media).source is not None


@dataclass(frozen=True)
class Prompt:
    """One task for the policy: a row of a data set. `Prompt("7", "Where is the cat?", media=("cat.jpg",), answer=box)`."""

    id: str
    text: str = ""
    """May hold an `<image>` marker per picture, `<video>` per clip, `<audio>` per sound; without any the media come first."""
    media: tuple[Media, ...] = ()
    """Pictures (a path or a PIL image), `Video`s and `Audio`s, in the order the text speaks of them; empty for text to image."""
    answer: Value = None
    """The ground truth that rewards compare with."""
    columns: Mapping[str, Value] = field(default_factory=dict[str, Value])
    """All other columns of the data set's row."""
    source: str = ""
    """Name of the `[[data]]` table it is from; empty where there is one data set only."""


@dataclass(frozen=True)
class Segment:
    """The tokens of a completion from `start` up to `stop`, and who wrote them: `Segment("policy", 0, 12)`."""

    who: Who
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def segments_of(pieces: Iterable[tuple[Who, int]]) -> tuple[Segment, ...]:
    """Segments end to end, from each piece's writer and number of tokens; pieces of one writer in a row become one segment."""
    found: list[Segment] = []
    for who, count in pieces:
        start = stop = found[-1].stop if found else 0
        if found and found[-1].who == who:
            start = found.pop().start
        if stop + count > start:
            found.append(Segment(who, start, stop + count))
    return tuple(found)


def complete(segments: Sequence[Segment], tokens: Sequence[int] | None) -> tuple[Segment, ...]:
    """The segments of a completion; without any, the policy wrote all of its tokens.

    Raises ValueError where they do not cover the tokens one after the other, or end with what an environment wrote.
    """
    whole = segments_of([("policy", len(tokens or ()))])
    if not segments:
        return whole
    if segments_of((one.who, len(one)) for one in segments) != tuple(segments) or segments[-1].stop != len(tokens or ()):
        raise ValueError(f"the segments {list(segments)} do not cover the {len(tokens or ())} tokens one after the other")
    if segments[-1].who == "environment":
        raise ValueError(f"the segments {list(segments)} end with the environment's: the policy has the last word")
    return tuple(segments)


def turn_ids(segments: Sequence[Segment]) -> list[int]:
    """The turn of each token: 0, 1, 2 .. where the policy wrote, one more after every environment; -1 where it did not."""
    ids: list[int] = []
    turn, is_over = -1, True
    for one in segments:
        if one.who == "policy":
            turn, is_over = turn + is_over, False
        is_over = is_over or one.who == "environment"
        ids += [turn if one.who == "policy" else -1] * len(one)
    return ids


def last_turn(segments: Sequence[Segment]) -> int:
    """The token at which the last turn begins: behind the last environment."""
    return max((one.stop for one in segments if one.who == "environment"), default=0)


@dataclass(frozen=True)
class Observation:
    """A world's answer to a turn: `Observation("Here it is: <image>", (crop,))`."""

    text: str = ""
    """May hold one `<image>` marker per picture; without markers the pictures come first."""
    media: tuple[Media, ...] = ()
    """Pictures."""
    role: Literal["user", "tool"] = "user"
    """Who speaks, as the chat template has it."""
    reward: float | None = None
    """For the turn that it answers."""
    done: bool = False
    """True: the episode is over, and text and media are only logged."""
    key: str = ""
    """A name for the state that the next turn starts from; empty: a digest of text and pictures."""
    facts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers for the log, such as `{"tool": 1.0, "error": 1.0}`: `environment/<name>` is the mean over samples of their sums."""


@dataclass(frozen=True)
class Turn:
    """One part of an episode: a text that the policy wrote in one go, and the world's answer."""

    text: str
    span: tuple[int, int]
    """Its tokens among those of the sample, the stop token that was sampled included."""
    observation: Observation | None = None
    """None: the world had no answer, or was not asked. After the last turn it is only logged."""
    media_sizes: tuple[MediaSize, ...] = ()
    """One per picture of the observation."""
    shown: tuple[MediaSize, ...] = ()
    """One per picture that the policy had seen before it wrote: those of its prompt, then those of earlier observations."""


@dataclass(frozen=True)
class Sample:
    """One output of the policy, as a reward sees it."""

    text: str | None = None
    """What was written in its last turn, which is all of it where no environment answers."""
    token_ids: tuple[int, ...] | None = None
    """The completion's tokens, the stop token included."""
    image: Media = None
    video: Media = None
    beside: Media = None
    """A picture that is shown with it in samples files, such as what the user's own words gave; nothing is scored by it."""
    truncated: bool = False
    """True when the completion was cut at max_new_tokens."""
    media_sizes: tuple[MediaSize, ...] = ()
    """One per picture of the prompt: needed to read boxes in the model's own pixels."""
    role: Role = "policy"
    fps: float | None = None
    """Frames per second of `video`, where it is an array of frames (frames, height, width, 3) of bytes."""
    clips: tuple[ClipTime, ...] = ()
    """One per video of the prompt: needed to read spans in frames or shares of the clip."""
    segments: tuple[Segment, ...] = ()
    """Who wrote which of its tokens, end to end; left out: the policy wrote all of them. Its own alone train."""
    temperature: float | None = None
    """What it was sampled at, where a planner asked for another temperature than the run's."""
    values: tuple[tuple[int, float], ...] = ()
    """Places in it, as numbers of its tokens, and the mean reward of what the policy went on with from there."""
    previews: tuple[Media, ...] = ()
    """Of image generators: what each step but the last predicted, until it is scored (`values`); empty where nothing asks."""
    earlier: str = ""
    """The text in front of its last turn: earlier turns, and what the environment answered."""
    turns: tuple[Turn, ...] = ()
    """Of an episode: its turns, with the world's answers."""
    ended: Ended | None = None
    """Of an episode: why it ended."""
    sound: Media = None
    """An array of float32 (channels, samples) in [-1, 1], with `rate` samples a second."""
    rate: int | None = None
    opened: str = ""
    """The tag that its chat template opened in front of it, `<think>`, which its text has to close; empty: none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", complete(self.segments, self.token_ids))

    @property
    def output(self) -> Media:
        """The picture, clip or sound; None of a text."""
        return next((made for made in (self.image, self.video, self.sound) if made is not None), None)

    @property
    def num_written(self) -> int:
        """How many of its tokens the policy wrote."""
        return sum(len(one) for one in self.segments if one.who == "policy")

    @property
    def transcript(self) -> str | None:
        """The text of all turns, and of what the environment answered."""
        return None if self.text is None else self.earlier + self.text


class Seen(NamedTuple):
    """The total rewards of all samples that a group ever had: `Seen(32, 0.25, 0.44)`."""

    size: int
    mean: float
    deviation: float
    """Unbiased; 0 of a single one."""


@dataclass(frozen=True)
class Group:
    """The samples of one prompt that are compared with each other: the unit of rewards and credit."""

    id: int
    prompt: Prompt
    samples: tuple[Sample, ...]
    probes: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict[str, tuple[Sample, ...]])
    """View name -> samples drawn for comparison only (T-GRPO's shuffled frames); rewards see them, the loss never does."""
    notes: tuple[str, ...] = ()
    """What the policy wrote about the prompt for the planner (hints); neither rewards nor the loss see it."""
    seen: Seen | None = None
    """Of all samples it ever had, where some rows were dropped or all come from an earlier step; None: of those it has."""


@dataclass(frozen=True)
class Scored:
    """A reward's answer with its named parts, for the log: `Scored(0.7, {"iou": 0.6, "format": 0.1})`."""

    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    shown: Sample | None = None
    """What was looked at in place of the sample, such as a picture drawn from it, for samples files; reward caches drop it."""


def answer_text(prompt: Prompt) -> str:
    """The true answer as a model would write it; ValueError where there is none, or it is no text and no number."""
    answer = prompt.answer
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise ValueError(
            f"prompt {prompt.id!r} has the answer {answer!r}, and the probability of the true answer needs a text or a number: "
            "give the data set answers that can be written, or take another method"
        )
    return str(answer).strip()
