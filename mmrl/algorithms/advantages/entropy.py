"""Advantages that look at how uncertain the policy was, and a budget of uncertain passages by how hard a prompt is (ARES)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.algorithms.advantages.group import OnTop
from mmrl.algorithms.notes import Notes
from mmrl.algorithms.statistics import lengths, with_column
from mmrl.core.readings import OLD_ENTROPY, OLD_LOGPROBS
from mmrl.core.types import Credit, Reading, Rollouts, Scores
from mmrl.runtime.ranges import BelowOne, Count, NonNegative, Number, Positive, PositiveShare, Share
from mmrl.runtime.tensors import masked_mean


@dataclass(frozen=True)
class EntropyControl(OnTop):
    """A - penalty H, and A = 0 where H > most; H the mean entropy of a rollout when it was sampled (GTPO, arXiv:2508.03772).

    The paper removes answers only for models whose entropy begins below ln 2; here nothing is removed in a step whose mean
    entropy is above `most`.
    """

    penalty: NonNegative = 0.1
    """Per nat of mean entropy."""
    most: Positive = 0.7
    """In nats per action, about ln 2."""

    reads = (OLD_ENTROPY,)

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit = self.inner(scores, rollouts)
        entropy = masked_mean(rollouts.recorded[OLD_ENTROPY].to(credit.values), rollouts.action_mask, dim=1)[:, None]
        removed = (entropy > self.most) & (entropy.mean() <= self.most)
        values = torch.where(removed, 0.0, credit.values - self.penalty * entropy)
        return Credit(torch.where(rollouts.action_mask & credit.keep[:, None], values, 0.0), credit.keep, credit.actions)


@dataclass(frozen=True)
class NoveltyBonus(OnTop):
    """A + min(novelty (1 - eta), most A) where A > 0 and eta < 1, eta = e^(mean log p - its mean over the group) (XRPO).

    XRPO, arXiv:2510.06672, its sharpening: right answers that the policy found unlikely count more, by `most` of their advantage.
    """

    novelty: NonNegative = 2.5
    """Bonus per unit of 1 - eta."""
    most: NonNegative = 0.5
    """In shares of A."""

    reads = (OLD_LOGPROBS,)

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit = self.inner(scores, rollouts)
        mean = masked_mean(rollouts.recorded[OLD_LOGPROBS].to(credit.values), rollouts.action_mask, dim=1)
        eta = torch.ones_like(mean)
        for one in sorted(set(map(int, rollouts.group_ids))):
            rows = (rollouts.group_ids == one) & (lengths(rollouts, mean) > 0)
            eta[rows] = (mean[rows] - mean[rows].mean()).exp()
        gain = (self.novelty * (1 - eta)).clamp(min=0)[:, None]
        bonus = torch.minimum(gain, self.most * credit.values.clamp(min=0))
        return Credit(credit.values + bonus, credit.keep, credit.actions)


@dataclass(frozen=True)
class NearEntropy(Notes, OnTop):
    """A <- (1 - a) A + a [A > right_above] p_T / p, T what brings entropy back to `target` (DCPO).

    DCPO, arXiv:2601.12730, code 597358816/DCPO. p is the probability of an action when it
    was sampled and p_T that at temperature T: `hot` as long as the entropy of the step before is at most `target`, else `cold`.
    a = x / (1 + x), x = min(|target - entropy|, most) / share of rows with A > right_above. Entropy is the mean of -log p of
    what was sampled, an estimate from one sample, and 0 before the first step. Where no row is right A stays.
    """

    target: NonNegative = 0.5
    """Entropy to be near, in nats per action."""
    most: NonNegative = 0.1
    """Largest distance from it that counts."""
    hot: Positive = 1.2
    """T as long as the entropy is at most the target."""
    cold: Positive = 0.8
    """T above it."""
    right_above: NonNegative = 0.05
    """A row whose advantage is larger is right."""

    @property
    def entropy(self) -> float:
        """The estimate from the step before."""
        return self.notes.get("entropy", 0.0)

    @property
    def reads(self) -> tuple[Reading, ...]:
        heat = self.hot if self.entropy <= self.target else self.cold
        return (OLD_LOGPROBS, OLD_LOGPROBS._replace(temperature=heat))

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit = self.inner(scores, rollouts)
        mask = rollouts.action_mask & credit.keep[:, None]
        plain, heated = (rollouts.recorded[reading].to(credit.values) for reading in self.reads)
        values = self.mixture(credit.values, (heated - plain).exp(), mask)
        self.notes["entropy"] = -float(masked_mean(plain, rollouts.action_mask))
        return Credit(torch.where(mask, values, 0.0), credit.keep, credit.actions)

    def mixture(self, advantages: Tensor, ratio: Tensor, mask: Tensor) -> Tensor:
        """The advantages (n, t) after the mixture."""
        right = torch.where(mask, advantages, 0.0).sum(1) / mask.sum(1).clamp(min=1) > self.right_above
        if not bool(right.any()):
            return advantages
        amount = min(abs(self.target - self.entropy), self.most) / float(right.double().mean())
        amount = amount / (1 + amount)
        return (1 - amount) * advantages + amount * right[:, None] * ratio


@dataclass(frozen=True)
class MostSpread(Notes, OnTop):
    """The rows of the step whose advantages have the largest variance train, and of their tokens those with the largest |A| H.

    D3S, arXiv:2509.22115, from summaries. Both shares grow evenly from their first value to their last within `over` steps;
    their values are published nowhere that could be read: ours. H is the entropy under the weights that sampled.
    """

    rows: PositiveShare = 0.5
    """Share of the step's rows at first."""
    rows_at_last: PositiveShare = 1.0
    """From step `over` on."""
    tokens: PositiveShare = 0.2
    """Share of the tokens of these rows at first, rounded up."""
    tokens_at_last: PositiveShare = 1.0
    """From step `over` on."""
    over: Count = 100
    """Steps."""

    reads = (OLD_ENTROPY,)

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit, step = self.inner(scores, rollouts), int(self.notes.get("step", 0.0))
        own = masked_mean(credit.values.double(), rollouts.action_mask, dim=1)
        places = credit.keep.nonzero()[:, 0]
        count = max(1, round(evenly(step, self.rows, self.rows_at_last, self.over) * len(places)))
        keep = torch.zeros_like(credit.keep)
        keep[places[most_spread(own[places], count)]] = True
        mask = rollouts.action_mask & keep[:, None]
        worth = credit.values.double().abs() * rollouts.recorded[OLD_ENTROPY].to(credit.values.device).double()
        share = evenly(step, self.tokens, self.tokens_at_last, self.over)
        return Credit(credit.values, keep, largest(worth, mask, share))

    def adapt(self, step: int, metrics: Mapping[str, float]) -> None:
        self.notes["step"] = step


def evenly(step: int, first: float, last: float, over: int) -> float:
    """From first, at step 0, to last, at step over - 1 and later."""
    return first + (last - first) * (min(1.0, step / (over - 1)) if over > 1 else 1.0)


def most_spread(x: Float[Tensor, " n"], count: int) -> list[int]:
    """The places of the `count` values with the largest variance, in order: the i lowest and the rest highest, for the best i."""
    order = list(map(int, x.argsort(stable=True)))
    choices = [[*order[:i], *order[len(order) - (count - i) :]] for i in range(min(count, len(order)) + 1)]
    return sorted(max(choices, key=lambda places: float(x[places].var(correction=0)) if places else 0.0))


def largest(x: Float[Tensor, "n t"], mask: Bool[Tensor, "n t"], share: float) -> Bool[Tensor, "n t"]:
    """True for this share of the entries under the mask, rounded up: the largest; of equal ones the earliest."""
    places, out = mask.flatten().nonzero()[:, 0], torch.zeros_like(mask.flatten())
    count = math.ceil(round(share * len(places), 9))
    out[places[x.flatten()[places].argsort(descending=True, stable=True)[:count]]] = True
    return out.view_as(mask)


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
