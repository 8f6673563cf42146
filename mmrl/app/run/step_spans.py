"""spans.jsonl of a run: what the main process did when, in some typical steps and in all that took unusually long.

    {"step": 7, "seconds": 0.51, "is_first": false, "spans": [["rollout", 0.0, 0.31], ["generate", 0.002, 0.29], ...]}

A span is its name, its beginning and its length in seconds; spans of other threads are not among them.
"""

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from threading import get_ident
from typing import NamedTuple

from mmrl.app.run.folder import RunDir, append_line
from mmrl.core.types import Examples
from mmrl.runtime.spans import tell_of_spans

STEP = "step"
"""The span around all others."""
KEPT = 32
"""How many steps are kept of those up to a power of two."""
MOST_SPANS = 120
"""Of a step, the longest ones."""
SLOW = 1.5
"""Times the median of the steps before it, from which on a step is kept in any case."""


class Timed(NamedTuple):
    """A span, by its place in the order in which spans began: one that holds others stands before them."""

    place: int
    name: str
    start: float
    """Seconds from the beginning of the step."""
    length: float = 0.0


class StepSpans:
    """Writes a line for every step up to 63, then for fewer and fewer, and for every slow one."""

    def __init__(self, run: RunDir) -> None:
        self.file, self.is_first = run.spans_file, True
        self._thread, self._start, self._seconds = get_ident(), 0.0, 0.0
        self._open: list[Timed] = []
        self._spans: list[Timed] = []
        self._begun = 0
        self._recent: deque[float] = deque(maxlen=KEPT)
        tell_of_spans(self)

    def begin(self, name: str) -> None:
        if get_ident() != self._thread:
            return
        now = time.perf_counter()
        if name == STEP:
            self._start, self._spans, self._open = now, [], []
        self._begun += 1
        self._open.append(Timed(self._begun, name, now - self._start))

    def end(self, name: str) -> None:
        if get_ident() != self._thread or not self._open:
            return
        opened = self._open.pop()
        length = time.perf_counter() - self._start - opened.start
        if name == STEP:
            self._seconds = length
        elif self._open:
            self._spans.append(opened._replace(length=length))

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        usual = median(self._recent) if len(self._recent) > 2 else self._seconds
        if step % stride(step) == 0 or self._seconds > SLOW * usual:
            longest = sorted(sorted(self._spans, key=lambda one: -one.length)[:MOST_SPANS])
            spans = [[one.name, round(one.start, 4), round(one.length, 4)] for one in longest]
            append_line(self.file, {"step": step, "seconds": round(self._seconds, 4), "is_first": self.is_first, "spans": spans})
        self._recent.append(self._seconds)
        self.is_first = False

    def after_evaluation(self, step: int, metrics: Mapping[str, float], examples: Examples) -> None:
        """It lies between steps."""

    def after_checkpoint(self, step: int, folder: Path) -> None:
        """It lies between steps."""

    def close(self) -> None:
        """Every line is on disk already."""


def stride(step: int) -> int:
    """The distance of the steps that are kept: 1 up to step 63, 2 up to 127, 4 up to 255, ..."""
    return 1 << max(0, (step // KEPT).bit_length() - 1)
