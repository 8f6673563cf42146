"""The ranking: means over seeds with intervals, and places that count only clear differences."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy import stats  # type: ignore[import-untyped]  # scipy ships no types

from mmrl.lab.arena.lane import Lane, Point

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Standing:
    """One method at the end."""

    label: str
    finals: Mapping[int, float]
    """Seed -> the figure at the end; seeds whose run failed are left out."""
    steps: float
    """Training steps, mean over the seeds."""
    seconds: float
    """Seconds that they took, mean over the seeds."""
    curve: Sequence[tuple[float, float]]
    """(seconds, figure) at the marks, means over the seeds."""
    failures: Sequence[str]
    place: int = 0
    """1 + the number of methods that are clearly better; 0 where nothing was finished."""

    @property
    def mean(self) -> float:
        return mean([*self.finals.values()])

    @property
    def half_width(self) -> float:
        """Half of the 95 % t-interval over the seeds; NaN with fewer than two."""
        return half_width([*self.finals.values()])


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def half_width(values: Sequence[float]) -> float:
    """Half of the t-interval of the mean."""
    if len(values) < 2:
        return math.nan
    return float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def is_clearly_better(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Does the interval of the differences at equal seeds lie above 0? Never with fewer than two shared seeds."""
    differences = [one[seed] - other[seed] for seed in one if seed in other]
    return mean(differences) > half_width(differences)


def standings(lanes: Sequence[Lane], figure: str, budget_s: float) -> list[Standing]:
    """Methods by their mean, best first; those without a finished run last."""
    found: list[Standing] = []
    for label in dict.fromkeys(lane.label for lane in lanes):
        own = [lane for lane in lanes if lane.label == label]
        ended = {lane.seed: lane.points() for lane in own if lane.is_finished(budget_s) and not lane.failure()}
        finals = {seed: points[-1].metrics[figure] for seed, points in ended.items()}
        steps, seconds = mean([float(p[-1].step) for p in ended.values()]), mean([p[-1].seconds for p in ended.values()])
        failures = [failure for lane in own if (failure := lane.failure())]
        found.append(Standing(label, finals, steps, seconds, mean_curve([*ended.values()], figure), failures))
    better = [sum(is_clearly_better(other.finals, one.finals) for other in found) for one in found]
    placed = [replace(one, place=1 + count) if one.finals else one for one, count in zip(found, better, strict=True)]
    return sorted(placed, key=lambda one: (not one.finals, -one.mean if one.finals else 0.0, one.label))


def mean_curve(runs: Sequence[Sequence[Point]], figure: str) -> list[tuple[float, float]]:
    """Point by point over the runs, as far as all of them go."""
    length = min((len(points) for points in runs), default=0)
    marks = [[points[i] for points in runs] for i in range(length)]
    return [(mean([one.seconds for one in mark]), mean([one.metrics[figure] for one in mark])) for mark in marks]
