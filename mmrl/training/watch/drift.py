"""Drift of texts from those of a run's first steps, which needs no watched reward: their length, form and repetition."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

SPREADS = 3.0
"""The first steps' values are rarely this many spreads from their median by chance."""


class Drift(NamedTuple):
    """A measure that moved away from its first values, and stayed away."""

    measure: str
    what: str
    before: float
    after: float


def ratio(x: float, y: float) -> float:
    return x / y if y else math.inf if x else 1.0


WAYS: tuple[tuple[str, str, Callable[[float, float], float]], ...] = (
    ("rollout/length", "completions became longer", lambda before, after: ratio(after, before)),
    ("rollout/length", "completions became shorter", lambda before, after: ratio(before, after)),
    ("train/form", "the form that most completions had was given up", lambda before, after: ratio(before, after)),
    ("train/repetition", "completions repeat themselves", lambda before, after: ratio(1 - before, 1 - after)),
)
"""A metric, what it means when it drifts one way, and how many times it moved that way."""


def drifts(first: Mapping[str, list[float]], last: Mapping[str, list[float]], factor: float) -> Iterator[Drift]:
    """Measures that in each of the last steps (the newer half) are `factor` times and 3 spreads from the median of the first.

    The spread is 1.4826 times the median distance of the first values from their median, so that one odd step does not count.
    Pictures have no such drift: their actions are the denoising steps, whatever is on them.
    """
    if "train/form" not in first:
        return
    for measure, what, times in WAYS:
        if not first.get(measure) or not last.get(measure):
            continue
        before = statistics.median(first[measure])
        spread = 1.4826 * statistics.median(abs(value - before) for value in first[measure])
        newer = last[measure][-max(3, len(last[measure]) // 2) :]
        if all(times(before, now) >= factor and abs(now - before) >= SPREADS * spread for now in newer):
            yield Drift(measure, what, before, statistics.median(newer))
