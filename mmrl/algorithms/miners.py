"""Rows for a later stage from scored samples: prompts of the right difficulty, or pairs of a better and a worse sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import NamedTuple

import numpy as np

from mmrl.core.samples import Sample
from mmrl.runtime.ranges import Count, CountOrNone, LargeOrNone, NonNegative, Number, Share, check_ranges

Columns = Mapping[str, object]
"""What a row adds to the columns of its prompt: texts and numbers, and a whole sample where that is a picture or a clip."""


class Found(NamedTuple):
    """The rows of one prompt, and how many of its scored samples were right."""

    rows: list[Columns]
    right: int
    scored: int


@dataclass(frozen=True)
class Difficulty:
    """Keeps a prompt whose share of right samples lies within [low, high]; its best sample may become a column.

    A prompt that is always or never right has no spread to learn from.
    """

    num_samples: CountOrNone = 0
    """Samples of every prompt; 0 = algorithm.group_size."""
    num_prompts: LargeOrNone = 0
    """The first n prompts; 0 = all."""
    success_at: Number = 0.5
    """Total reward from which a sample is right."""
    low: Share = 0.1
    """Smallest share of right samples that is kept."""
    high: Share = 0.9
    """Largest share of right samples that is kept."""
    column: str = ""
    """The column that gets a prompt's best right sample, for a stage `sft` (rejection sampling, best of n): the text, or the
    picture or clip. Prompts without one are dropped. Empty: none."""

    least_samples = 1

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.low > self.high:
            raise ValueError(f"low is {self.low:g} and high is {self.high:g}: no share of right samples lies between")

    def __call__(self, samples: Sequence[Sample], totals: Sequence[float]) -> Found:
        scored = by_total(samples, totals)
        right = [sample for sample, total in scored if total >= self.success_at]
        share = len(right) / len(scored) if scored else -1.0
        whole = list(filter(is_whole, right))
        rows: list[Columns] = [{self.column: content(whole[0])} if self.column else {}] if whole or not self.column else []
        return Found(rows if self.low <= share <= self.high else [], len(right), len(scored))

    def stand_in(self, one: object, other: object) -> Columns:
        """The columns of a row that is not there yet, with these two in place of samples."""
        return {self.column: one} if self.column else {}


@dataclass(frozen=True)
class BestAndWorst:
    """Pairs of a prompt: the sample of the highest total reward is chosen, that of the lowest rejected.

    A row's columns are chosen, rejected and margin, the difference of their totals. Samples that were cut, are empty or have no
    score are left out, and pairs of equal samples. Rewards of the stage's own may be a verifier or a judge (VerIPO,
    arXiv:2505.19000).
    """

    num_samples: CountOrNone = 0
    """Samples of every prompt; 0 = algorithm.group_size."""
    num_prompts: LargeOrNone = 0
    """The first n prompts; 0 = all."""
    most: Count = 1
    """Pairs of a prompt: the best with the worst, the second best with the second worst."""
    gap: NonNegative = 0.0
    """The totals of a pair differ by more than this."""
    success_at: Number | None = None
    """The chosen has at least this total, the rejected less; None: no such bound."""
    prefer_long: bool = False
    """Of samples with the same total the longest is the best and the shortest the worst (VerIPO)."""

    __post_init__ = check_ranges
    least_samples = 2

    def __call__(self, samples: Sequence[Sample], totals: Sequence[float]) -> Found:
        kept = [(one, total) for one, total in by_total(samples, totals) if is_whole(one)]
        if self.prefer_long:
            kept.sort(key=lambda pair: (-pair[1], -pair[0].num_written))
        rows: list[Columns] = []
        for (good, high), (bad, low) in list(zip(kept, reversed(kept), strict=True))[: min(self.most, len(kept) // 2)]:
            is_split = self.success_at is None or low < self.success_at <= high
            if high - low > self.gap and is_split and not alike(good, bad):
                rows.append({"chosen": content(good), "rejected": content(bad), "margin": high - low})
        scored = [total for total in totals if not isnan(total)]
        bound = 0.5 if self.success_at is None else self.success_at
        return Found(rows, sum(total >= bound for total in scored), len(scored))

    def stand_in(self, one: object, other: object) -> Columns:
        """The columns of a row that is not there yet, with these two in place of samples."""
        return {"chosen": one, "rejected": other, "margin": 1.0}


Miner = Difficulty | BestAndWorst
MINERS: Mapping[str, type[Miner]] = {"filter": Difficulty, "pairs": BestAndWorst}
"""The kind of a stage that takes no steps -> what makes its rows."""


def by_total(samples: Sequence[Sample], totals: Sequence[float]) -> list[tuple[Sample, float]]:
    """The samples that have a score, best first; those of the same score stay in their order."""
    known = [(sample, total) for sample, total in zip(samples, totals, strict=True) if not isnan(total)]
    return sorted(known, key=lambda pair: -pair[1])


def is_whole(sample: Sample) -> bool:
    """Was it written to its end, and says or shows something?"""
    return not sample.truncated and (sample.output is not None or bool(sample.text and sample.text.strip()))


def content(sample: Sample) -> object:
    """A text as it is; a sample that was drawn as a whole, since what it shows becomes a file."""
    return sample.text if sample.output is None else sample


def alike(one: Sample, other: Sample) -> bool:
    """Do both say or show the same?"""
    return one.text == other.text and np.array_equal(np.asarray(one.output), np.asarray(other.output))
