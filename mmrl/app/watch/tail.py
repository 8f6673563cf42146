"""A file of lines that grows: what was added since the last look, and long series of numbers in few points."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mmrl.app.run.folder import Line

MOST_POINTS = 120
"""Points of a series; a longer one is kept as means of neighbouring lines."""
MOST_NAMES = 500
"""Metrics that are followed."""


class Tail:
    """The new lines of a .jsonl file; a last line without its end is left until it is whole."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._offset, self._inode = 0, 0
        self.num_bad = 0
        """Lines that were no JSON objects, and are left out."""

    def is_another(self) -> bool:
        """Was the file written anew or cut since the last look, as by a run that resumes? It must then be read from the start."""
        try:
            found = os.stat(self.file)
        except FileNotFoundError:
            return self._offset > 0
        return self._offset > 0 and (found.st_ino != self._inode or found.st_size < self._offset)

    def fresh(self) -> list[Line]:
        """The lines since the last call, none of an absent file."""
        try:
            with self.file.open("rb") as stream:
                found = os.fstat(stream.fileno())
                self._inode = found.st_ino
                stream.seek(self._offset)
                added = stream.read(max(0, found.st_size - self._offset))
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = [line_of(text) for text in whole.split(b"\n") if text.strip()]
        self.num_bad += lines.count(None)
        return [line for line in lines if line is not None]


def line_of(text: bytes) -> Line | None:
    """A JSON object with a step, or None."""
    try:
        line = json.loads(text)
        return line if isinstance(line, dict) and math.isfinite(line["step"]) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


@dataclass
class LineBucket:
    """Neighbouring lines: the last step, and the sum and number of every metric's finite values."""

    step: int
    sums: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])

    def add(self, values: Mapping[str, tuple[float, int]]) -> None:
        for name, (value, count) in values.items():
            total, number = self.sums.get(name, (0.0, 0))
            self.sums[name] = total + value, number + count


class MetricTail:
    """Lines of metrics in at most MOST_POINTS means; memory and time do not grow with their number."""

    def __init__(self) -> None:
        self.width, self.num_lines = 1, 0
        """Lines in a point; lines so far."""
        self._buckets: list[LineBucket] = []
        self._names: set[str] = set()

    def add(self, line: Line) -> None:
        step, values = int(line["step"]), {name: number(value) for name, value in line.items() if name != "step"}
        self._names |= set(list(values)[: MOST_NAMES - len(self._names)]) if len(self._names) < MOST_NAMES else set()
        if self.num_lines % self.width == 0:
            self._buckets.append(LineBucket(step))
        self._buckets[-1].step = step
        self._buckets[-1].add({n: (v, 1) if math.isfinite(v) else (0.0, 0) for n, v in values.items() if n in self._names})
        self.num_lines += 1
        if len(self._buckets) > MOST_POINTS:
            self._halve()

    def lines(self) -> list[Line]:
        """The points as lines of a run's metrics; NaN where none of a point's values was finite."""
        return [
            {"step": one.step} | {name: total / count if count else math.nan for name, (total, count) in one.sums.items()}
            for one in self._buckets
        ]

    def _halve(self) -> None:
        pairs = [self._buckets[i : i + 2] for i in range(0, len(self._buckets), 2)]
        for first, *second in pairs:
            for other in second:
                first.step = other.step
                first.add(other.sums)
        self._buckets = [pair[0] for pair in pairs]
        self.width *= 2


def number(value: object) -> float:
    """A value of metrics.jsonl; NaN for what is no number."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan
