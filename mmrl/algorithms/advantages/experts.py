"""Credit for answers of others: an expert's, while the policy's own are rarely right, and demonstrations."""

from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from torch import Tensor

from mmrl.algorithms.advantages.group import GroupNorm, OnTop
from mmrl.algorithms.beside import Beside
from mmrl.algorithms.statistics import Compared, by_group, is_rounding, moments, standardize, to_credit, totals_and_keep
from mmrl.core.hooks import AdvantageHooks
from mmrl.core.readings import OLD_LOGPROBS, TAUGHT, TEACHER_LOGPROBS
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import Count, NonNegative, Number, Positive, Range, check_ranges


@dataclass(frozen=True)
class ExpertWhereFew(Compared, Beside):
    """A = (r - mean) / (deviation + eps) of own samples; an injected one gets weight G if fewer than `enough` are right (AHPO).

    arXiv:2510.08540 (MM-HELIX). G is the number of own samples: with a mean over rollouts the expert's
    log-likelihood then weighs as much as the group's surrogate. Where enough are right the expert's answer leaves every count.
    Take the term WithImitation.
    """

    enough: Count = 2
    """Number of right samples from which the expert's answer is not used."""
    weight: NonNegative = 1.0
    """Of the expert's log-likelihood, in units of the group's surrogate."""
    success_at: Number = 0.5
    ddof: Annotated[int, Range(0, 1)] = 1
    eps: NonNegative = 1e-6

    planners = ("WithExpert", "WithTruth")

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        given = torch.tensor([sample.role == "injected" for _, sample in rollouts.samples()], dtype=torch.bool)
        values = by_group(rollouts, keep, totals, self._credit, given)
        return to_credit(values, keep & ~(given & (values == 0)), rollouts, scores)

    def _credit(self, rewards: Tensor, given: Tensor) -> Tensor:
        own = rewards[~given]
        values = torch.zeros_like(rewards)
        values[~given] = standardize(own, self.ddof, self.eps)
        if int((own >= self.success_at).sum()) < self.enough:
            values[given] = self.weight * len(own)
        return values


@dataclass(frozen=True)
class Demonstrated(AdvantageHooks):
    """A = 1 at every action of every row, whatever the rewards say: rows without any are kept too."""

    unscored: bool = True
    """Is no reward asked? False: rewards are asked and logged, or used by a term that takes their gradient."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        return Credit(torch.ones(rollouts.action_mask.shape), torch.ones(len(rollouts), dtype=torch.bool))


@dataclass(frozen=True)
class Told(AdvantageHooks):
    """A = 1 in rows that a teacher has to itself; the others leave loss and counts (SDPO, arXiv:2601.20802).

    Take it with a FollowTeacher whose teacher is told something, or has the wrong rows.
    """

    reads = (TAUGHT,)

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        return Credit(torch.ones(rollouts.action_mask.shape), (rollouts.recorded[TAUGHT] > 0).any(1))


@dataclass(frozen=True)
class ExceptTaught(OnTop):
    """The advantage of rewards, and 0 in rows that a teacher has to itself, which stay in all counts (SRPO, arXiv:2604.02288)."""

    inner: GroupNorm = field(default_factory=GroupNorm)
    """The advantage of rewards: it compares all rows."""
    reads = (TAUGHT,)

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit = self.inner(scores, rollouts)
        return replace(credit, values=torch.where(rollouts.recorded[TAUGHT] > 0, 0.0, credit.values))


@dataclass(frozen=True)
class TowardsTeacher:
    """A = rewards * inner + weight * clamp(log teacher - log old) per token: reverse KL to the teacher as a reward.

    For surrogates of a policy gradient. What a token does to later ones gets no credit.
    """

    inner: GroupNorm = field(default_factory=GroupNorm)
    """The advantage of rewards."""
    rewards: NonNegative = 0.0
    """Its factor; 0: rewards are not asked."""
    weight: NonNegative = 1.0
    """The factor of the gap between the log-probabilities."""
    bound: Positive | None = None
    """The gap is clamped to [-c, c]; None: it is not."""

    reads = (TEACHER_LOGPROBS, OLD_LOGPROBS)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.unscored and self.inner != GroupNorm():
            raise ValueError("TowardsTeacher.inner is of rewards, whose factor rewards is 0: set that, or leave inner out")

    @property
    def unscored(self) -> bool:
        return self.rewards == 0

    @property
    def min_group_size(self) -> int:
        return 1 if self.unscored else self.inner.min_group_size

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit = Demonstrated()(scores, rollouts) if self.unscored else self.inner(scores, rollouts)
        gap = rollouts.recorded[TEACHER_LOGPROBS] - rollouts.recorded[OLD_LOGPROBS]
        gap = torch.where(rollouts.action_mask, gap if self.bound is None else gap.clamp(-self.bound, self.bound), 0.0)
        return replace(credit, values=self.rewards * credit.values + self.weight * gap)


@dataclass(frozen=True)
class Preferred(Compared, Beside):
    """A = +1 for the first row of every group, which is preferred, and -1 for the second.

    A row without its partner is left out.
    """

    unscored = True
    planners = ("Pairs", "PicturePairs", "TaughtPairs")

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        values = torch.where(rollouts.sample_ids == 0, 1.0, -1.0)
        partners = (rollouts.group_ids[:, None] == rollouts.group_ids).sum(1)
        return Credit(values[:, None].expand(rollouts.action_mask.shape), partners == 2)


@dataclass(frozen=True)
class AnchoredNorm(AdvantageHooks):
    """A = (r - mean) / (deviation + eps) of the policy's own samples; an injected one gets anchor * max A (TempSamp-R1).

    arXiv:2509.18056, its "advantage anchoring": the ground truth does not push the policy's own rewards below their mean.
    """

    anchor: Number = 1.2
    """Advantage of the injected sample, as a multiple of the largest among the policy's own samples."""
    ddof: Annotated[int, Range(0, 1)] = 1
    eps: NonNegative = 1e-6
    zero_below: NonNegative = 1e-6
    """As in GroupNorm: own samples that differ only by rounding get 0."""

    min_group_size = 3

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        given = torch.tensor([sample.role == "injected" for _, sample in rollouts.samples()], dtype=torch.bool)
        return to_credit(by_group(rollouts, keep, totals, self._normalize, given), keep, rollouts, scores)

    def _normalize(self, rewards: Tensor, given: Tensor) -> Tensor:
        own = rewards[~given]
        values = torch.zeros_like(rewards)
        if len(own) > 1 and bool((own != own[0]).any()):
            mean, deviation = moments(own, self.ddof)
            if not is_rounding(own, deviation, self.zero_below):
                values = (rewards - mean) / (deviation + self.eps)
                values[given] = self.anchor * values[~given].max()
        return values
