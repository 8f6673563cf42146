"""Prompts grouped into bundles, and risk measures of their scores: RiskPO."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from mmrl.algorithms.statistics import to_credit, totals_and_keep
from mmrl.core.protocols import State
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import Count, NonNegative, Positive, Range, check_ranges

QUANTILES = tuple(round(0.05 * i, 2) for i in range(1, 20))
SAME = 1e-3
"""Nothing is divided by a deviation or a sum of leads below this; the paper's code does so for deviations."""
Level = Annotated[float, Range(above=0, below=1)]


@dataclass(frozen=True)
class Bundles:
    """A = risk measure of a paper / deviation, a paper one sample of each of `size` prompts (RiskPO, arXiv:2510.00911).

    S is a paper's sum of rewards; those of a bundle of consecutive prompts are compared. a = [max(S - q_low, 0) -
    max(S - q_high, 0) (+ q_low - q_high)] / (high - low), mixed with the tail: a <- (mix (-max(q_low - S, 0) / low) + a) / (mix
    + 1), divided by the deviation of S in the bundle. Quantiles are tracked, q <- q + rate (alpha - mean 1[S < q]), or those of
    the bundle, or their mean. Samples beyond the smallest group of a bundle keep an advantage of 0.
    """

    size: Count = 5
    """Prompts of a bundle."""
    low: Level = 0.2
    """The lower level."""
    high: Level = 0.8
    """The upper level."""
    mix: NonNegative | None = 1.5
    """Weight of the tail below the lower level; None: the range measure alone."""
    rate: Positive = 0.1
    """Step size of the tracked quantiles."""
    quantiles: Literal["track", "batch", "mix"] = "track"
    """Which quantiles to use: those tracked over all steps, the bundle's own, or the mean of both."""
    share: Literal["sum_mean", "uniform", "std", "score"] = "sum_mean"
    """What a sample gets of its paper's advantage. sum_mean: a part in proportion to r - the prompt's mean. uniform: all of it.
    std: all of it over the prompt's deviation. score: 0.5 times it where r > 0, else 1.5 times."""
    baseline: bool = False
    """True: add q_low - q_high inside the bracket."""
    most: Positive = 3.0
    """Largest |part| of a paper's advantage that a sample gets; ours: without it sums near 0 make parts explode."""
    eps: NonNegative = 1e-6
    """Added to deviations and levels."""
    tracked: dict[float, float] = field(default_factory=dict[float, float], init=False, compare=False, repr=False)
    min_group_size = 1

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.low >= self.high:
            raise ValueError(f"Bundles.low is {self.low} and high {self.high}: give a lower level below the upper one")

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        values = torch.zeros_like(totals)
        papers: list[Tensor] = []
        ids = sorted(set(map(int, rollouts.group_ids[keep])))
        for start in range(0, len(ids), self.size):
            rows = [((rollouts.group_ids == one) & keep).nonzero()[:, 0] for one in ids[start : start + self.size]]
            count = min(map(len, rows))
            table = torch.stack([own[:count] for own in rows])
            papers.append(totals[table].sum(0))
            credit = self.of_papers(papers[-1])
            leads = totals[table].sum(0) - sum(float(totals[own].mean()) for own in rows)
            for own, mine in zip(rows, table, strict=True):
                values[mine] = self.sample_part(credit, totals[mine], totals[own], leads, len(rows))
        self.track(torch.cat(papers) if papers else totals[:0])
        return to_credit(values, keep, rollouts, scores)

    def of_papers(self, sums: Tensor) -> Tensor:
        """The advantage of every paper of a bundle, from their scores."""
        down, up = (self.quantile(level, sums) for level in (self.low, self.high))
        value = (sums - down).clamp(min=0) - (sums - up).clamp(min=0) + ((down - up) if self.baseline else 0.0)
        value = value / (self.high - self.low + self.eps)
        if self.mix is not None:
            value = (self.mix * (-(down - sums).clamp(min=0) / (self.low + self.eps)) + value) / (self.mix + 1)
        return value / (float(sums.std()) + self.eps if len(sums) > 1 else 1.0)

    def quantile(self, level: float, sums: Tensor) -> float:
        """The score below which this share of papers lies."""
        own, tracked = float(sums.quantile(level)), self.tracked.get(self.nearest(level), 0.0)
        return {"track": tracked, "batch": own, "mix": (own + tracked) / 2}[self.quantiles]

    def nearest(self, level: float) -> float:
        """The tracked level."""
        return min(QUANTILES, key=lambda one: abs(one - level))

    def sample_part(self, credit: Tensor, rewards: Tensor, prompt: Tensor, leads: Tensor, num_prompts: int) -> Tensor:
        """The part of its papers' advantages that each of a prompt's samples gets; `leads` are papers' sums of r - mean."""
        if self.share == "uniform":
            return credit
        if self.share == "score":
            return credit * torch.where(rewards > 0, 0.5, 1.5)
        if self.share == "std":
            deviation = float(prompt.std()) if len(prompt) > 1 else 0.0
            return credit / (deviation + self.eps if deviation >= SAME else 1.0)
        even = leads.abs() < SAME
        part = (rewards - prompt.mean()) / torch.where(even, torch.ones_like(leads), leads)
        part = part.clamp(-self.most, self.most)
        return credit * torch.where(even, torch.full_like(leads, 1 / num_prompts), part)

    def track(self, sums: Tensor) -> None:
        """Move the tracked quantiles towards the scores of a step's papers."""
        if not len(sums):
            return
        for level in QUANTILES:
            known = self.tracked.get(level, 0.0)
            self.tracked[level] = known + self.rate * (level - float((sums < known).double().mean()))

    def state_dict(self) -> State:
        return {"levels": list(self.tracked), "values": list(self.tracked.values())}

    def load_state_dict(self, state: State) -> None:
        self.tracked.clear()
        self.tracked.update(zip(state["levels"], state["values"], strict=True))
