"""Typed spans of time, the units they are written in, and their overlap."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, get_args

Unit = Literal["seconds", "frames", "norm"]
"""seconds: from the beginning of the clip. frames: frame i lasts from i to i + 1. norm: shares of the clip's duration."""
UNITS: tuple[Unit, ...] = get_args(Unit)
MOST = 1e12
"""Beyond any clip, in any unit; sums of larger lengths could overflow."""


@dataclass(frozen=True)
class Interval:
    """A span of continuous time, [start, end): `Interval(2.4, 7, "seconds")`.

    Raises ValueError for a number that is not finite or beyond 1e12, a start before 0, a span without length, or an unknown unit.
    """

    start: float | int
    end: float | int
    unit: Unit = "seconds"

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"interval unit {self.unit!r} is unknown; choose one of {', '.join(UNITS)}")
        for name in ("start", "end"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if not (isfinite(self.start) and isfinite(self.end)):
            raise ValueError(f"{self} has an end that is not finite")
        if self.end > MOST:
            raise ValueError(f"{self} has an end beyond {MOST:g}, which no clip has")
        if not 0 <= self.start < self.end:
            raise ValueError(f"{self} is no span of time: it needs 0 <= start < end")

    def __str__(self) -> str:
        return f"span {self.start:g} to {self.end:g} ({self.unit})"

    @property
    def length(self) -> float:
        return self.end - self.start

    @property
    def middle(self) -> float:
        return (self.start + self.end) / 2

    def contains(self, time: float | int) -> bool:
        """True for a time in the span's own unit from its start to its end, both included."""
        return self.start <= time <= self.end

    def to(self, unit: Unit, duration: float | None = None, fps: float | None = None) -> "Interval":
        """The same span in another unit, for a clip of the given length and frame rate: `span.to("frames", fps=2.0)`.

        Raises ValueError if the conversion needs a duration or frame rate that is missing.
        """
        if unit == self.unit:
            return self
        factor = length_of(unit, duration, fps) / length_of(self.unit, duration, fps)
        return replace(self, start=self.start * factor, end=self.end * factor, unit=unit)

    def iou(self, other: "Interval") -> float:
        """|self n other| / |self u other|, in [0, 1]. Raises ValueError for a span in another unit: convert it with `to`."""
        return temporal_iou(self, other)

    def clamped(self, most: float | int) -> "Interval | None":
        """The part before `most`, in the span's own unit; None if nothing is left."""
        return None if self.start >= most else replace(self, end=min(self.end, most))


def length_of(unit: Unit, duration: float | None, fps: float | None) -> float:
    """The length of one second (without a duration) or of the whole clip (with one) in a unit.

    Raises ValueError if the unit needs the number that is missing.
    """
    if unit == "norm":
        if duration is None or not 0 < duration < float("inf"):
            raise ValueError(
                f"unit 'norm' needs the clip's duration in seconds, not {duration}: give the row a column `duration`"
            )
        return 1.0
    seconds = 1.0 if duration is None else duration
    if unit == "seconds":
        return seconds
    if fps is None or not 0 < fps < float("inf"):
        raise ValueError(f"unit 'frames' needs the frame rate that frames are counted at, not {fps}: give the row a column `fps`")
    return seconds * fps


def temporal_iou(a: Interval, b: Interval) -> float:
    """max(0, min(ends) - max(starts)) / union, in [0, 1]: 0 for spans that only touch, 1 for a span with itself."""
    _same_unit(a, b)
    overlap = max(0.0, min(a.end, b.end) - max(a.start, b.start))
    return overlap / (a.length + b.length - overlap)


def merge_spans(spans: Iterable[Interval]) -> list[Interval]:
    """Merge spans into ones that cover the same times and neither overlap nor touch, in order."""
    found: list[Interval] = []
    for span in sorted(spans, key=lambda span: span.start):
        if found:
            _same_unit(found[-1], span)
        if found and span.start <= found[-1].end:
            found[-1] = replace(found[-1], end=max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def union_iou(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """|A n B| / |A u B| of the times that two lists of spans cover; 1 if both lists are empty.

    In linear time after sorting. Equal to `temporal_iou` for one span each.
    """
    if not first and not second:
        return 1.0
    a, b = merge_spans(first), merge_spans(second)
    overlap, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        _same_unit(a[i], b[j])
        overlap += max(0.0, min(a[i].end, b[j].end) - max(a[i].start, b[j].start))
        if a[i].end <= b[j].end:
            i += 1
        else:
            j += 1
    return overlap / (sum(span.length for span in (*a, *b)) - overlap)


def _same_unit(a: Interval, b: Interval) -> None:
    if a.unit != b.unit:
        raise ValueError(f"{a} and {b} are in different units: convert one with .to(unit, duration, fps)")
