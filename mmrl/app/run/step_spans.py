"""spans.jsonl of a run: what the main process did when, in some typical steps and in all that took unusually long.

    {"step": 7, "seconds": 0.51, "is_first": false, "spans": [["rollout", 0.0, 0.31], ["generate", 0.002, 0.29], ...]}

A span is its name, its beginning and its length in seconds. What the threads did meanwhile that sample beside training is in
`"beside": {"sampler-0": [["chunk", 0.0, 0.12], ...]}`, cut to the step; spans of other threads are left out.
"""

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from statistics import median
from threading import Lock, current_thread, get_ident
from typing import NamedTuple

from mmrl.app.run.folder import RunDir, append_line
from mmrl.runtime.spans import tell_of_spans
from mmrl.training.callbacks import Callback, Examples

STEP = "step"
"""The span around all others."""
KEPT = 32
"""How many steps are kept of those up to a power of two."""
MOST_SPANS = 120
"""Of a step, the longest ones."""
BESIDE = ("mmrl-ahead", "sampler-")
"""How the names of threads begin that sample beside training."""
SLOW = 1.5
"""Times the median of the steps before it, from which on a step is kept in any case."""


class Timed(NamedTuple):
    """A span, by its place in the order in which spans began: one that holds others stands before them."""

    place: int
    name: str
    start: float
    """Seconds from the beginning of the step."""
    length: float = 0.0


class ThreadLane:
    """The outermost spans of another thread, in seconds of the clock."""

    def __init__(self) -> None:
        self.depth, self.lock = 0, Lock()
        self.spans: deque[tuple[str, float, float]] = deque()

    def begin(self, name: str) -> None:
        with self.lock:
            if not self.depth:
                self.spans.append((name, time.perf_counter(), math.inf))
            self.depth += 1

    def end(self) -> None:
        with self.lock:
            self.depth -= 1
            if not self.depth:
                name, begun, _ = self.spans.pop()
                self.spans.append((name, begun, time.perf_counter()))

    def between(self, start: float, end: float) -> list[tuple[str, float, float]]:
        """Name, beginning and length of what lies in a stretch, cut to it; what ended before its end is forgotten."""
        with self.lock:
            found = [(name, max(begun, start), min(ended, end)) for name, begun, ended in self.spans]
            while self.spans and self.spans[0][2] <= end:
                self.spans.popleft()
        return [(name, begun - start, ended - begun) for name, begun, ended in found if ended > begun]


class StepSpans(Callback):
    """Writes a line for every step up to 63, then for fewer and fewer, and for every slow one."""

    def __init__(self, run: RunDir) -> None:
        self.file, self.is_first = run.spans_file, True
        self._thread, self._start, self._seconds = get_ident(), 0.0, 0.0
        self._open: list[Timed] = []
        self._spans: list[Timed] = []
        self._begun = 0
        self._lanes: dict[str, ThreadLane] = {}
        self._recent: deque[float] = deque(maxlen=KEPT)
        tell_of_spans(self)

    def begin(self, name: str) -> None:
        if get_ident() != self._thread:
            if current_thread().name.startswith(BESIDE):
                self._lanes.setdefault(current_thread().name, ThreadLane()).begin(name)
            return
        now = time.perf_counter()
        if name == STEP:
            self._start, self._spans, self._open = now, [], []
        self._begun += 1
        self._open.append(Timed(self._begun, name, now - self._start))

    def end(self, name: str) -> None:
        if get_ident() != self._thread:
            if current_thread().name in self._lanes:
                self._lanes[current_thread().name].end()
            return
        if not self._open:
            return
        opened = self._open.pop()
        length = time.perf_counter() - self._start - opened.start
        if name == STEP:
            self._seconds = length
        elif self._open:
            self._spans.append(opened._replace(length=length))

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        stretch = self._start, self._start + self._seconds
        beside = {name: rows_of(lane.between(*stretch)) for name, lane in sorted(self._lanes.copy().items())}
        usual = median(self._recent) if len(self._recent) > 2 else self._seconds
        if step % stride(step) == 0 or self._seconds > SLOW * usual:
            longest = sorted(sorted(self._spans, key=lambda one: -one.length)[:MOST_SPANS])
            line = {"step": step, "seconds": round(self._seconds, 4), "is_first": self.is_first}
            line |= {"spans": rows_of((one.name, one.start, one.length) for one in longest)}
            append_line(self.file, line | ({"beside": beside} if any(beside.values()) else {}))
        self._recent.append(self._seconds)
        self.is_first = False


def rows_of(spans: Iterable[tuple[str, float, float]]) -> list[list[str | float]]:
    """Spans as the file has them, the first ones where there are too many."""
    return [[name, round(start, 4), round(length, 4)] for name, start, length in islice(spans, MOST_SPANS)]


def stride(step: int) -> int:
    """The distance of the steps that are kept: 1 up to step 63, 2 up to 127, 4 up to 255, ..."""
    return 1 << max(0, (step // KEPT).bit_length() - 1)
