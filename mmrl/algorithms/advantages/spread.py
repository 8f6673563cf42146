"""Groups weighed by how they did: whose samples differ enough, whose success is rare, where length paid; bundles of prompts."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from mmrl.algorithms.advantages.group import OnTop
from mmrl.algorithms.notes import Notes
from mmrl.algorithms.statistics import (
    Compared,
    by_group,
    lengths,
    one_per_group,
    place_of,
    refuse_unbounded,
    standardize,
    to_credit,
    totals_and_keep,
    values_at,
)
from mmrl.core.protocols import State
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import (
    BelowOne,
    Count,
    LargeOrNone,
    NonNegative,
    Number,
    Positive,
    PositiveShare,
    Range,
    With,
    check_ranges,
)


@dataclass(frozen=True)
class WhereSpread(Notes, OnTop):
    """A of prompts whose total rewards deviate by share m or more, m the running mean of deviations; the others leave (RLPR).

    arXiv:2506.18254, its filter of prompts. m <- follow m + (1 - follow) mean over the step's prompts, from step `hold` + 1 on,
    and prompts leave from step `start` + 1 on. Prompts with one reward or none have no deviation and are left out of m. If all
    prompts of a step would leave, all stay; this rule is ours.
    """

    share: NonNegative = 0.5
    """Bound on the deviation, as a share of the running mean."""
    follow: BelowOne = 0.99
    """Share of the running mean that is kept at each step."""
    hold: LargeOrNone = 5
    """First steps whose deviations do not count."""
    start: LargeOrNone = 10
    """First steps in which every prompt stays."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit = self.inner(scores, rollouts)
        totals, keep = totals_and_keep(scores)
        deviations = torch.zeros_like(totals)
        known: list[float] = []
        for one in sorted(set(map(int, rollouts.group_ids[keep]))):
            rows = (rollouts.group_ids == one) & keep
            if int(rows.sum()) > 1:
                deviations[rows] = totals[rows].std()
                known.append(float(totals[rows].std()))
        leaves = self.leaves(deviations, self.learn(known))
        return Credit(credit.values, credit.keep & ~leaves, credit.actions)

    def learn(self, deviations: list[float]) -> float:
        """The bound after a step whose prompts have these deviations; 0 while no prompt is to leave."""
        step = self.notes.get("step", 0.0) + 1
        self.notes["step"] = step
        if deviations and step > self.hold:
            now = sum(deviations) / len(deviations)
            self.notes["mean"] = self.follow * self.notes.get("mean", now) + (1 - self.follow) * now
        return self.share * self.notes.get("mean", 0.0) if step > self.start else 0.0

    def leaves(self, deviations: Tensor, bound: float) -> Tensor:
        """Which rows are of prompts with a smaller deviation than the bound (n,)."""
        below = deviations < bound
        return torch.zeros_like(below) if bool(below.all()) else below


@dataclass(frozen=True)
class BetaNorm(Compared):
    """A = (r - p) / Beta(p; alpha, beta), p the group's mean reward, alpha and beta fitted to the step's p (BNPO).

    BNPO, arXiv:2506.02864. With m, v the mean and unbiased variance of p over the prompts, c = m (1 - m) / v - 1:
    alpha = max(1, 1 + c m / 3), beta = max(1, 1 + c (1 - m) / 3). A step of one prompt has alpha = beta = 1: A = r - p. Not
    implemented: the paper's variant that does this for each reward separately.
    """

    max_weight: Positive = 1e6
    """Largest 1 / density, where the density of p vanishes."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError when a total reward lies outside [0, 1]."""
        totals, keep = totals_and_keep(scores)
        kept = totals[keep]
        refuse_unbounded(kept, "BetaNorm")
        centred = by_group(rollouts, keep, totals, lambda r: r - r.mean())
        rates = (totals - centred).clamp(0, 1)
        weight = torch.ones_like(totals)
        weight[keep] = self._weights(rates[keep], rollouts.group_ids[keep])
        return to_credit(centred * weight, keep, rollouts, scores)

    def _weights(self, rates: Tensor, group_ids: Tensor) -> Tensor:
        alpha, beta = self.shape(one_per_group(rates, group_ids))
        density = torch.distributions.Beta(rates.new_tensor(alpha), rates.new_tensor(beta), validate_args=False)
        return density.log_prob(rates).neg().exp().clamp(max=self.max_weight)

    def shape(self, rates: Tensor) -> tuple[float, float]:
        """alpha and beta for the success rates (q,) of the prompts."""
        if len(rates) < 2:
            return 1.0, 1.0
        mean, variance = float(rates.mean()), float(rates.var())
        if variance == 0:
            return 1.0, 1.0
        spread = mean * (1 - mean) / variance - 1
        return max(1.0, 1 + spread * mean / 3), max(1.0, 1 + spread * (1 - mean) / 3)


@dataclass(frozen=True)
class Asymmetric(Compared):
    """A = z (w / (2 sqrt p) + (1 - w) / (2 sqrt(1 - p))), times min(1, w / knee) where A > 0; w the step's mean reward (A-GRAE).

    z = (r - p) / biased deviation, p the group's success rate; groups of only right or only wrong answers get 0. Early in
    training, when w is small, right answers are held back and hard prompts count less. arXiv:2602.05548, equations 11 to 13.
    """

    knee: PositiveShare = 0.5
    """Mean reward of the step from which right answers count in full: 1 for text, 0.5 for pictures in the paper."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError when a total reward lies outside [0, 1]."""
        totals, keep = totals_and_keep(scores)
        kept = totals[keep]
        refuse_unbounded(kept, "Asymmetric")
        success = float(kept.mean()) if len(kept) else 0.0
        values = by_group(rollouts, keep, totals, lambda r: self._weigh(r, success))
        held = min(1.0, success / self.knee)
        return to_credit(torch.where(values > 0, held * values, values), keep, rollouts, scores)

    def _weigh(self, rewards: Tensor, success: float) -> Tensor:
        rate, deviation = float(rewards.mean()), rewards.std(correction=0)
        if bool((rewards == rewards[0]).all()) or not 0 < rate < 1:
            return torch.zeros_like(rewards)
        weight = success / 2 / rate**0.5 + (1 - success) / 2 / (1 - rate) ** 0.5
        return (rewards - rate) / deviation * weight


@dataclass(frozen=True)
class WhereLengthPays(Compared):
    """A = w (r - mean) / (deviation + eps); w = 1 where the longest right answer is longer than the mean wrong one, else `less`.

    ADORA (its report has no arXiv id that could be found). Wrong answers of `cap` actions or more do not count. The two official
    codes differ where one side is empty. `empty = "text"`: no right answer gives `less`, no wrong one 1. `empty = "vision"`: no
    right answer gives 1, no wrong one `less`.
    """

    less: PositiveShare = 0.1
    """Weight of a group where length did not pay."""
    cap: Count = 4094
    """Number of actions from which a wrong answer counts as cut off: 4054 in the text code, 4094 in the other."""
    correct: str = ""
    """The reward that decides what is right; empty: the total."""
    above: Number = 0.5
    """An answer is right where that reward is above it."""
    empty: Literal["text", "vision"] = "vision"
    """Which of the two codes to follow for groups without a right or without a wrong answer."""
    eps: NonNegative = 1e-6

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError when no reward has the name `correct`."""
        totals, keep = totals_and_keep(scores)
        beside = self._right(scores, totals), lengths(rollouts, totals)
        return to_credit(by_group(rollouts, keep, totals, self._weigh, *beside), keep, rollouts, scores)

    def _right(self, scores: Scores, totals: Tensor) -> Tensor:
        if not self.correct:
            return totals > self.above
        return values_at(scores, place_of(scores, self.correct, "algorithm.advantage.correct")) > self.above

    def _weigh(self, rewards: Tensor, right: Tensor, length: Tensor) -> Tensor:
        return standardize(rewards, ddof=1, eps=self.eps) * self.weight(right, length)

    def weight(self, right: Tensor, length: Tensor) -> float:
        """w of one group from which of its samples are right (g,) and their numbers of actions (g,)."""
        good, bad = length[right], length[~right & (length < self.cap)]
        if not len(good):
            return self.less if self.empty == "text" else 1.0
        if not len(bad):
            return 1.0 if self.empty == "text" else self.less
        return 1.0 if float(good.max()) > float(bad.mean()) else self.less


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
    rate: Annotated[Positive, With("quantiles", "track", "mix")] = 0.1
    """Step size of the tracked quantiles."""
    quantiles: Literal["track", "batch", "mix"] = "track"
    """Which quantiles to use: those tracked over all steps, the bundle's own, or the mean of both."""
    share: Literal["sum_mean", "uniform", "std", "score"] = "sum_mean"
    """What a sample gets of its paper's advantage. sum_mean: a part in proportion to r - the prompt's mean. uniform: all of it.
    std: all of it over the prompt's deviation. score: 0.5 times it where r > 0, else 1.5 times."""
    baseline: bool = False
    """True: add q_low - q_high inside the bracket."""
    most: Annotated[Positive, With("share", "sum_mean")] = 3.0
    """Largest |part| of a paper's advantage that a sample gets; ours: without it sums near 0 make parts explode."""
    eps: NonNegative = 1e-6
    """Added to deviations and levels."""
    tracked: dict[float, float] = field(default_factory=dict[float, float], init=False, compare=False, repr=False)

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
