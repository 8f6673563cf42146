"""The spans of one completion beside the true ones, in seconds of the clip; temporal rewards start here."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

from mmrl.answers.block import InTemplate, completion_text, items_of
from mmrl.answers.boxes.parsing import says_nothing
from mmrl.answers.spans.interval import Interval, Unit, temporal_iou, union_iou
from mmrl.answers.spans.parsing import parse_intervals, parse_times
from mmrl.core.types import Group, Prompt, Sample, Scored


class Clock(NamedTuple):
    """The length and frame rates of a clip; None where nothing says so."""

    seconds: float | None
    file_fps: float | None
    """Frames per second of the file, which a true span in frames counts."""
    seen_fps: float | None
    """Frames per second that the model was shown, which it counts if it writes frames."""


@dataclass(frozen=True)
class SpanAttempt:
    """A completion read as spans in seconds, and the truth."""

    prompt_id: str
    truth: tuple[Interval, ...]
    predicted: tuple[Interval, ...] = ()
    """Spans as written, cut at the end of the clip."""
    times: tuple[float, ...] = ()
    """All single times that the text counts in the reward's unit, in seconds: for rewards on key frames."""
    seconds: float | None = None
    """How long the clip lasts, if that is known."""
    outside: bool = False
    """True if the text names a span that begins after the clip has ended."""
    says_nothing: bool = False

    @property
    def only_truth(self) -> Interval:
        """The true span; ValueError unless there is exactly one."""
        if len(self.truth) != 1:
            raise ValueError(
                f"prompt {self.prompt_id!r} has {len(self.truth)} true spans and this compares with one: use kind = 'iou'"
            )
        return self.truth[0]

    @property
    def iou(self) -> float:
        """Overlap of the times that all predicted and all true spans cover."""
        return union_iou(self.predicted, self.truth) if self.predicted else float(self.says_nothing and not self.truth)

    @property
    def best(self) -> Interval | None:
        """The predicted span that overlaps the one true span most."""
        return max(self.predicted, key=lambda span: temporal_iou(span, self.only_truth), default=None)

    def parts(self) -> dict[str, float]:
        """Parts for the log: shares of texts without a readable span, with one after the clip's end."""
        return {"unparsed": float(not self.predicted and not self.says_nothing), "outside": float(self.outside)}


@dataclass(frozen=True)
class OfSpans(InTemplate, ABC):
    """The common base of rewards that compare spans of time; a prompt without an answer gets None."""

    unit: Unit = field(default="seconds", kw_only=True)
    """The unit of numbers without one: seconds, frames (that the model was shown) or norm (shares of the clip)."""

    def __call__(self, group: Group) -> list[float | Scored | None]:
        if group.prompt.answer is None:
            return [None] * len(group.samples)
        return self.score_each(group, lambda sample: self.score(read_spans(group.prompt, sample, self.unit)))

    @abstractmethod
    def score(self, attempt: SpanAttempt) -> Scored:
        """The score of one completion."""


def read_spans(prompt: Prompt, sample: Sample, unit: Unit) -> SpanAttempt:
    """One completion as spans; numbers without a unit count `unit`.

    How long the clip lasts comes from the sample's clips, else from the prompt's columns `duration` and `fps`.
    Raises ValueError if the answer is not made of spans or lies after the clip's end, the sample has no text, or the unit needs
    a duration or frame rate that is unknown.
    """
    text, clock = completion_text(prompt, sample), clock_of(prompt, sample)
    try:
        truth = tuple(dict.fromkeys(span.to("seconds", clock.seconds, clock.file_fps) for span in true_spans(prompt)))
        step = Interval(0, 1, unit).to("seconds", clock.seconds, clock.seen_fps).end
    except ValueError as error:
        raise ValueError(f"prompt {prompt.id!r}: {error}") from None
    for span in truth:
        if clock.seconds is not None and span.start >= clock.seconds:
            raise ValueError(f"prompt {prompt.id!r}: the true {span} begins after the clip's end at {clock.seconds:g} seconds")
    # an annotation may end a little after the file does; a prediction of just that is no worse for it
    most = float("inf") if clock.seconds is None else max((clock.seconds, *(span.end for span in truth)))
    written = [seconds for span in parse_intervals(text, unit) if (seconds := _in_seconds(span, clock)) is not None]
    kept = tuple(cut for span in dict.fromkeys(written) if (cut := span.clamped(most)) is not None)
    times = tuple(step * time for time in parse_times(text, unit, wanted=unit))
    outside = len(kept) < len(dict.fromkeys(written))
    return SpanAttempt(prompt.id, truth, kept, times, clock.seconds, outside, says_nothing(text))


def clock_of(prompt: Prompt, sample: Sample) -> Clock:
    """The clock of the prompt's first clip."""
    if sample.clips:
        clip = sample.clips[0]
        return Clock(clip.seconds, clip.fps, clip.frames / clip.seconds)
    seconds, fps = (_number(prompt, name) for name in ("duration", "fps"))
    return Clock(seconds, fps, fps)


def true_spans(prompt: Prompt) -> tuple[Interval, ...]:
    """The prompt's answer as spans; ValueError if it is something else."""
    found = items_of(prompt.answer)
    spans = tuple(span for span in found if isinstance(span, Interval))
    if len(spans) < len(found):
        raise ValueError(f"the answer is {prompt.answer!r}: temporal rewards need an Interval or a tuple of Intervals")
    return spans


def _number(prompt: Prompt, column: str) -> float | None:
    value = prompt.columns.get(column)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"prompt {prompt.id!r}: column {column} is {value!r}, it must be a number above 0")
    return float(value)


def _in_seconds(span: Interval, clock: Clock) -> Interval | None:
    """The span in seconds; None for a unit that the text brought up itself and nothing here can convert."""
    try:
        return span.to("seconds", clock.seconds, clock.seen_fps)
    except ValueError:
        return None
