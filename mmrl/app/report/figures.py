"""Numbers over held-out prompts, their uncertainty, and their change from one set of answers to another."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Float64

from mmrl.app.report.rows import SampleLine, mean

K = TypeVar("K")
NUM_RESAMPLES = 2000
LEAST_PROMPTS = 10
"""With fewer no interval is drawn and nothing is said to rise or fall: a bootstrap of so few is far too narrow."""
MOST_RESAMPLED = 4000
"""Prompts up to which intervals are drawn by bootstrap; of more, the normal interval is the same and costs nothing."""
Z = 1.959963984540054
"""A normal value lies within plus or minus this many deviations with probability 0.95."""
Kind = Literal["iou", "share", "reward", "part"]
"""iou: in [0, 1]. share: of the prompts, written in percent. reward: the total. part: one reward of several, or a part of it."""
How = Literal["wilson", "bootstrap", "normal", "none"]


@dataclass(frozen=True)
class SampleFigure:
    """A number that every sample has; NaN where it has none."""

    name: str
    kind: Kind
    value: Callable[[SampleLine], float]
    unread: Callable[[SampleLine], float] = lambda row: row.unread
    """1 where the answer could not be read for it, 0 where it could, NaN where that is unknown."""


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts with its 95 % interval: `Estimate(0.5, 0.24, 0.76, 10, "wilson", 0.1)`."""

    mean: float
    low: float
    high: float
    num_prompts: int
    how: How
    """wilson: shares of prompts that are right or wrong; none: fewer than LEAST_PROMPTS prompts, and low and high are NaN."""
    unread: float = math.nan
    """Share of the samples whose answer could not be read; NaN where that is unknown."""

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low)

    @property
    def why_none(self) -> str:
        """The reason for no interval; empty where there is one."""
        return "" if self.has_interval else f"{self.num_prompts} of {LEAST_PROMPTS} prompts"


@dataclass(frozen=True)
class PairedChange:
    """One figure over the same held-out prompts before and after (or in one run and another).

    `low` and `high` bound the difference: a 95 % bootstrap interval; NaN below LEAST_PROMPTS prompts.
    """

    name: str
    before: float
    after: float
    low: float
    high: float
    num_prompts: int
    kind: Kind
    higher: int = 0
    """Prompts whose value is higher after than before."""
    lower: int = 0
    unread: tuple[float, float] = (math.nan, math.nan)
    """Share of the samples whose answer could not be read, before and after; NaN where that is unknown."""

    @property
    def has_unread(self) -> bool:
        return math.isfinite(self.unread[1])

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low)

    @property
    def clear(self) -> bool:
        """There is an interval, and it excludes no change."""
        return self.low > 0 or self.high < 0

    @property
    def same(self) -> int:
        """Prompts whose value is the same."""
        return self.num_prompts - self.higher - self.lower

    def facts(self) -> dict[str, object]:
        """The change as programs read it."""
        return {**vars(self), "difference": self.difference, "clear": self.clear, "sign_p": self.sign_p}

    @cached_property
    def sign_p(self) -> float:
        """Two-sided p of the sign test: how often fair coins split the prompts that differ at least as unevenly; NaN for few."""
        if self.num_prompts < LEAST_PROMPTS:
            return math.nan
        if not self.higher + self.lower:
            return 1.0
        from scipy.stats import binomtest

        return float(binomtest(self.higher, self.higher + self.lower).pvalue)


def figures(rows: Sequence[SampleLine], parts: bool = False) -> list[SampleFigure]:
    """Mean IoU, hits, Acc@0.5 of boxes, R@0.3 to 0.7 of spans, total reward, and each reward (or its `parts`, as `iou/hit`)."""
    names = list(dict.fromkeys(name for row in rows for name in row.line["scores"]))
    found = dict.fromkeys(part for row in rows for part in row.parts if not part.endswith("/unparsed")) if parts else {}
    return [
        SampleFigure("Mean IoU", "iou", lambda row: row.iou),
        SampleFigure("Hits", "share", lambda row: row.hits),
        SampleFigure("Acc@0.5", "share", lambda row: math.nan if row.spans or math.isnan(row.iou) else float(row.iou >= 0.5)),
        *(
            SampleFigure(f"R@{least}", "share", lambda row, least=least: float(row.iou >= least) if row.spans else math.nan)
            for least in (0.3, 0.5, 0.7)
        ),
        SampleFigure("Reward", "reward", lambda row: row.total),
        *(
            SampleFigure(name, "part", partial(value_of, key=name), unread_by(name))
            for name in [*(names if len(names) > 1 else ()), *found]
        ),
    ]


def unread_by(name: str) -> Callable[[SampleLine], float]:
    """Says whether the reward of this name, or the one whose part it is, could not read an answer."""
    part = f"{name.partition('/')[0]}/unparsed"
    return lambda row: row.parts.get(part, math.nan)


def estimates(by_prompt: Mapping[K, Sequence[SampleLine]], parts: bool = False) -> dict[str, Estimate]:
    """Every figure that the samples of these prompts have, by its name; samples of a prompt are averaged first."""
    rows = [row for own in by_prompt.values() for row in own]
    found: dict[str, Estimate] = {}
    for figure in figures(rows, parts):
        values = [value for own in by_prompt.values() if math.isfinite(value := mean(map(figure.value, own)))]
        if values:
            found[figure.name] = estimate(values, mean(map(figure.unread, rows)))
    return found


def estimate(values: Sequence[float], unread: float = math.nan) -> Estimate:
    """The mean of one value per prompt, with an interval: Wilson's where all are 0 or 1, else of prompts drawn again."""
    array = np.asarray(values, dtype=np.float64)
    count, middle = len(array), float(array.mean())
    if count < LEAST_PROMPTS:
        return Estimate(middle, math.nan, math.nan, count, "none", unread)
    if np.isin(array, (0.0, 1.0)).all():
        from scipy.stats import binomtest

        interval = binomtest(int(array.sum()), count).proportion_ci(method="wilson")
        return Estimate(middle, float(interval.low), float(interval.high), count, "wilson", unread)
    how: How = "bootstrap" if count <= MOST_RESAMPLED else "normal"
    return Estimate(middle, *interval_of_mean(array), count, how, unread)


def paired_changes(
    before: Mapping[K, Sequence[SampleLine]], after: Mapping[K, Sequence[SampleLine]], asked: Sequence[SampleFigure] = ()
) -> list[PairedChange]:
    """Every figure that both sides know, or those asked for, over the prompts (keys) that both have; samples of a prompt are
    averaged first."""
    prompts = [prompt for prompt in before if prompt in after]
    sides = [[row for prompt in prompts for row in side[prompt]] for side in (before, after)]
    found: list[PairedChange] = []
    for figure in asked or figures([*sides[0], *sides[1]]):
        both = [(mean(map(figure.value, before[p])), mean(map(figure.value, after[p]))) for p in prompts]
        kept = np.array([pair for pair in both if all(map(math.isfinite, pair))])
        if not len(kept):
            continue
        moved = kept[:, 1] - kept[:, 0]
        low, high = interval_of_mean(moved) if len(kept) >= LEAST_PROMPTS else (math.nan, math.nan)
        unread = mean(map(figure.unread, sides[0])), mean(map(figure.unread, sides[1]))
        ends = float(kept[:, 0].mean()), float(kept[:, 1].mean())
        signs = int((moved > 0).sum()), int((moved < 0).sum())
        found.append(PairedChange(figure.name, *ends, low, high, len(kept), figure.kind, *signs, unread))
    return found


def value_of(row: SampleLine, key: str) -> float:
    """A reward of a sample, or a part of one; NaN where it has none."""
    scores: Mapping[str, float | None] = row.line["scores"]
    value = scores.get(key) if key in scores else row.parts.get(key)
    return math.nan if value is None else float(value)


def interval_of_mean(values: Float64[np.ndarray, " n"]) -> tuple[float, float]:
    """95 % interval of the mean over prompts: by bootstrap, or normal where there are many."""
    if len(values) <= MOST_RESAMPLED:
        return bootstrap(values)
    reach = Z * float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()) - reach, float(values.mean()) + reach


def bootstrap(differences: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the mean over prompts drawn with replacement; the differences are paired by prompt."""
    draws = np.random.default_rng(seed).integers(len(differences), size=(NUM_RESAMPLES, len(differences)))
    low, high = np.quantile(differences[draws].mean(1), [0.025, 0.975])
    return float(low), float(high)
