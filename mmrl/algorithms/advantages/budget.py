"""A budget of uncertain passages that depends on how hard a prompt is: ARES."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.algorithms.advantages.on_top import OnTop
from mmrl.algorithms.notes import Notes
from mmrl.algorithms.statistics import with_column
from mmrl.core.readings import OLD_ENTROPY
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import BelowOne, Count, NonNegative, Number, Share


class Bucket(NamedTuple):
    """How a difficulty is judged: `Bucket(2 / 3, 0.15, 2.0, 2.0, 1.0, 0.6, 1)`."""

    least: float
    """The lowest success rate of a prompt of this difficulty."""
    margin: float
    """Tolerance around the target, as a share of it; at least 1 passage."""
    kappa: float
    """Where the penalty turns from a square to a line, in passages."""
    temperature: float
    """Of the sigmoid, in passages."""
    cap: float
    """Largest bonus or penalty, in coefficients."""
    wrong: float
    """What a wrong answer gains for going on, as a multiple of the cap."""
    sign: int
    """1: the coefficient rises when there are more passages than the target, -1: when there are fewer."""


BUCKETS: Mapping[str, Bucket] = {
    "easy": Bucket(2 / 3, 0.15, 2.0, 2.0, 1.0, 0.6, 1),
    "medium": Bucket(1 / 3, 0.25, 3.0, 2.5, 1.0, 0.8, 1),
    "hard": Bucket(0.0, 0.35, 4.0, 3.0, 1.2, 1.0, -1),
}


def huber(excess: float, kappa: float) -> float:
    """x^2 / (2 kappa) up to kappa, a line beyond."""
    return excess**2 / (2 * kappa) if excess <= kappa else excess - kappa / 2


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def budget_score(name: str, passages: float, target: float, right: bool, coefficient: float) -> float:
    """The bonus or penalty of an answer by its number of uncertain passages, as in ARES' reward file."""
    one = BUCKETS[name]
    lead, cap = passages - target, coefficient * one.cap
    margin = max(1.0, one.margin * max(target, 1.0))
    if not right:
        return sigmoid(max(lead - margin, 0.0) / one.temperature) * cap * one.wrong
    if name == "hard" and lead >= -margin:
        return sigmoid((lead + margin) / one.temperature) * cap
    excess = {"easy": lead - margin, "medium": abs(lead) - margin, "hard": -lead - margin}[name]
    share = huber(max(excess, 0.0), one.kappa) / (margin + one.kappa)
    return -min(cap, (0.5 if name == "hard" else 1.0) * share * cap)


def passages(entropy: Float[Tensor, "n t"], mask: Bool[Tensor, "n t"], window: int) -> Float[Tensor, "n t"]:
    """The mean entropy of an action and those after it, `window` in all or as many as there are; 0 where there is no action."""
    kept, there = torch.where(mask, entropy, 0.0), mask.to(entropy)
    total, count = torch.zeros_like(kept), torch.zeros_like(kept)
    for ahead in range(min(window, kept.shape[1])):
        total[:, : kept.shape[1] - ahead] += kept[:, ahead:]
        count[:, : kept.shape[1] - ahead] += there[:, ahead:]
    return torch.where(mask, total / count.clamp(min=1), 0.0)


@dataclass(frozen=True)
class EntropyBudget(Notes, OnTop):
    """A of r + s, s a bonus for the number of uncertain passages that suits a prompt's difficulty (ARES' AEPO).

    ARES, arXiv:2510.08457, code shawn0728/ARES. A passage is `window` actions whose mean entropy exceeds a
    threshold, the running median over rows of their quantile `percentile`. The target of a difficulty (success rate from 2/3 on,
    from 1/3 on, below) is the mean number of passages in the step before; s follows `budget_score`, and its coefficient moves
    by `rate` per passage away from the target, within [0, 2]. In the code the target is this step's mean, so that the
    coefficient never moves. Not implemented: the KL budget, for which no formula was found, and the training stage before.
    """

    window: Count = 4
    """Actions of a passage."""
    percentile: Share = 0.95
    """Percentile of a row's passages above which they are uncertain; ours."""
    follow: BelowOne = 0.99
    """Share of the threshold that is kept at each step."""
    coefficient: NonNegative = 0.5
    """Size of the bonus at the beginning of training."""
    rate: NonNegative = 0.05
    """How fast the coefficients move."""
    success_at: Number = 0.5

    reads = (OLD_ENTROPY,)

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals = scores.total().double()
        entropies = passages(rollouts.recorded[OLD_ENTROPY].double(), rollouts.action_mask, self.window)
        counts = (rollouts.action_mask & (entropies > self.threshold(entropies, rollouts.action_mask))).sum(1).double()
        bonus, seen = torch.zeros_like(totals), dict[str, list[float]]()
        for one in sorted(set(map(int, rollouts.group_ids))):
            rows = torch.nonzero((rollouts.group_ids == one) & ~totals.isnan())[:, 0]
            if not len(rows):
                continue
            right = totals[rows] >= self.success_at
            name = next(name for name, bucket in BUCKETS.items() if float(right.double().mean()) >= bucket.least)
            seen.setdefault(name, []).extend(map(float, counts[rows]))
            target = self.notes.get(f"target/{name}", float(counts[rows].mean()))
            size = self.notes.get(f"coefficient/{name}", self.coefficient)
            for row in map(int, rows):
                bonus[row] = budget_score(name, float(counts[row]), target, bool(totals[row] >= self.success_at), size)
        self.learn(seen)
        return self.inner(with_column(scores, self, "entropy_budget", bonus, 1.0), rollouts)

    def threshold(self, entropies: Tensor, mask: Tensor) -> float:
        """The mean entropy above which a passage is uncertain; it follows the rows."""
        own = [row[kept].quantile(self.percentile) for row, kept in zip(entropies, mask, strict=True) if bool(kept.any())]
        if own:
            now = float(torch.stack(own).median())
            self.notes["threshold"] = self.follow * self.notes.get("threshold", now) + (1 - self.follow) * now
        return self.notes.get("threshold", math.inf)

    def learn(self, seen: Mapping[str, list[float]]) -> None:
        """Move coefficients and targets by a step's numbers of passages."""
        for name, counts in seen.items():
            mean = sum(counts) / len(counts)
            away = BUCKETS[name].sign * (mean - self.notes.get(f"target/{name}", mean))
            size = self.notes.get(f"coefficient/{name}", self.coefficient) + self.rate * away
            self.notes[f"coefficient/{name}"] = min(max(size, 0.0), 2.0)
            self.notes[f"target/{name}"] = mean
