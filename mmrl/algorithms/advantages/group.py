"""Rewards compared with those of the same prompt, or of a part of its samples, and advantages that modify another one."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from mmrl.algorithms.beside import Beside, Parts
from mmrl.algorithms.statistics import (
    Compared,
    EpsMode,
    Singleton,
    by_group,
    divisor,
    is_rounding,
    largest_deviation,
    lengths,
    less_mean,
    moments,
    standardize,
    to_credit,
    totals_and_keep,
)
from mmrl.core.hooks import AdvantageHooks, PartHooks
from mmrl.core.readings import OLD_ENTROPY
from mmrl.core.types import Credit, Reading, Rollouts, Sample, Scores
from mmrl.runtime.ranges import Count, NonNegative, Number, Positive, Range, Share, check_ranges
from mmrl.runtime.tensors import masked_mean


@dataclass(frozen=True)
class GroupNorm(PartHooks):
    """A = (r - group mean) / scale (GRPO, arXiv:2402.03300; scale="none" is Dr. GRPO, arXiv:2503.20783).

    The defaults are TRL 1.16's but for zero_below. verl: eps=1e-6, singleton="reward". Flow-GRPO: ddof=0, clip=5.
    DanceGRPO: eps=1e-8. Flow-Factory: ddof=0, eps=1e-6, eps_mode="max".
    """

    scale: Literal["group", "batch", "max_group", "none"] = "group"
    """Divide by the deviation of the group, of all rows of the step, of the step's most spread group (LongCat-Video,
    arXiv:2510.22200), or not at all."""
    ddof: Annotated[int, Range(0, 1)] = 1
    """1 = unbiased deviation, as all text code has it; 0 = population, as papers and flow code have it."""
    eps: NonNegative = 1e-4
    eps_mode: EpsMode = "add"
    zero_below: NonNegative = 1e-6
    """A group whose own deviation is smaller, in units of its largest reward where that is above 1, gets 0: rewards that differ
    only by rounding teach nothing. 0 is parity with code that has no threshold."""
    clip: Positive | None = None
    singleton: Singleton = "zero"
    drop_zero: bool = False
    """Rows whose advantage is 0 (groups without spread) leave every count and penalty, unless all do (Flow-GRPO's code)."""

    @property
    def min_group_size(self) -> int:
        """1 only where a lone sample is compared with nothing."""
        return 1 if self.singleton == "reward" and self.scale != "group" else 2

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        over_all = moments(totals[keep], self.ddof)[1]
        if self.scale == "max_group":
            over_all = largest_deviation(rollouts, keep, totals, self.ddof)
        values = by_group(rollouts, keep, totals, lambda r: self._normalize(r, over_all))
        if self.clip is not None:
            values = values.clamp(-self.clip, self.clip)
        if self.drop_zero and bool(values.any()):
            keep = keep & (values != 0)
        return to_credit(values, keep, rollouts, scores)

    def _normalize(self, rewards: Tensor, over_all: Tensor) -> Tensor:
        mean, deviation = moments(rewards, self.ddof)
        alone = len(rewards) == 1
        if alone and self.singleton == "reward":
            mean, deviation = torch.zeros_like(mean), torch.ones_like(deviation)
        elif bool((rewards == rewards[0]).all()) or is_rounding(rewards, deviation, self.zero_below):
            return torch.zeros_like(rewards)
        if self.scale == "none":
            return rewards - mean
        return (rewards - mean) / divisor(deviation if self.scale == "group" else over_all, self.eps, self.eps_mode)


@dataclass(frozen=True)
class RightOrWrong(Compared):
    """A = 1[r > right_above] - share of such samples in the group, for terms that know right and wrong only (DisCO, DRPO, NFT).

    Works for rewards of 0 and 1 or of -1 and 1, both of which the papers use; any other total counts as one of the two.
    """

    right_above: Number = 0.5
    """A sample whose total reward is larger is right."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        right = (totals > self.right_above).to(totals)
        return to_credit(by_group(rollouts, keep, right, lambda r: less_mean(r, "zero")), keep, rollouts, scores)


@dataclass(frozen=True)
class BySign(Beside):
    """A = right where r > right_above, else wrong, compared with nothing; rows whose A is 0 leave every count (arXiv:2506.01347).

    (1, 0) is PSR, (0, -1) NSR, (0.1, -1) W-REINFORCE. Its code wants rewards of exactly 0 or 1; here any total is right or wrong.
    """

    right: NonNegative = 0.1
    """The advantage of a right sample."""
    wrong: Annotated[float, Range(high=0)] = -1.0
    """The advantage of a wrong one."""
    right_above: Number = 0.5
    """A sample whose total reward is larger is right."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not (self.right or self.wrong):
            raise ValueError("BySign.right and BySign.wrong are 0, so that nothing trains: set one of them")

    def check_beside(self, algorithm: Parts) -> None:
        """Raises ValueError for DynamicSampling, which drops the groups that teach most."""
        if type(algorithm.planner).__name__ == "DynamicSampling":
            raise ValueError(
                "algorithm.planner DynamicSampling drops groups that are right or wrong altogether, and with BySign these teach, "
                "too: set algorithm.planner.kind = 'Once'"
            )

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        values = torch.full_like(totals, self.wrong).where(totals <= self.right_above, self.right)
        return to_credit(values, keep & (values != 0), rollouts, scores)


@dataclass(frozen=True)
class LeaveOneOut(Compared):
    """A = r - mean of the other samples of the group = G / (G - 1) (r - group mean) (RLOO, arXiv:2402.14740)."""

    singleton: Singleton = "zero"

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        values = by_group(rollouts, keep, totals, lambda r: less_mean(r, self.singleton) * len(r) / max(len(r) - 1, 1))
        return to_credit(values, keep, rollouts, scores)


@dataclass(frozen=True)
class LengthBaseline(Compared):
    """A = r - sum_i len_i r_i / sum_i len_i, the variance-optimal baseline for long answers (OPO, arXiv:2505.23585)."""

    singleton: Singleton = "zero"

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        values = by_group(rollouts, keep, totals, lambda r, n: less_mean(r, self.singleton, n), lengths(rollouts, totals))
        return to_credit(values, keep, rollouts, scores)


@dataclass(frozen=True)
class PassK(Compared):
    """A = (r_max - r_second) / (deviation + eps) for the best sample of a group, 0 for the others (arXiv:2503.19595).

    With a tie at the top no sample gets anything. The pass@k objective for k between 1 and G is not implemented: k = G.
    """

    scale: bool = True
    """False: r_max - r_second as it is."""
    ddof: Annotated[int, Range(0, 1)] = 1
    eps: NonNegative = 1e-6
    zero_below: NonNegative = 1e-6
    """As in GroupNorm: a group of rewards that differ only by rounding gets 0."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        return to_credit(by_group(rollouts, keep, totals, self._best), keep, rollouts, scores)

    def _best(self, rewards: Tensor) -> Tensor:
        values = torch.zeros_like(rewards)
        deviation = moments(rewards, self.ddof)[1]
        if len(rewards) == 1 or is_rounding(rewards, deviation, self.zero_below):
            return values
        top = rewards.topk(2)
        lead = top.values[0] - top.values[1]
        if self.scale:
            lead = lead / (deviation + self.eps)
        values[top.indices[0]] = lead
        return values


@dataclass(frozen=True)
class ReinforcePlusPlus(PartHooks):
    """A = reward whitened over all actions of the step: (r - mean) / sqrt(variance + eps), long rows counting more.

    REINFORCE++ (arXiv:2501.03262). baseline=True subtracts the group's mean first (the paper's variant for groups).
    Not implemented: the KL penalty inside the reward (use a ReferenceKL term), discounting (gamma is 1).
    """

    baseline: bool = False
    """True: subtract the group's mean before whitening."""
    eps: NonNegative = 1e-8
    """Added to the variance, in units of the reward squared."""
    singleton: Singleton = "reward"
    """With a baseline: a group of one keeps its reward before whitening, as in verl."""

    @property
    def min_group_size(self) -> int:
        return 2 if self.baseline else 1

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        values = by_group(rollouts, keep, totals, lambda r: less_mean(r, self.singleton)) if self.baseline else totals
        white = torch.zeros_like(totals)
        weights = lengths(rollouts, totals)[keep]
        white[keep] = standardize(values[keep], ddof=1, eps=self.eps, mode="variance", weights=weights)
        return to_credit(white, keep, rollouts, scores)


@dataclass(frozen=True)
class NonZeroScaled(Compared):
    """A = (r - group mean) N / number of non-zero rewards, N rows of the step (GPG, arXiv:2504.02546).

    The scale makes up for samples without a reward signal. Not implemented: the paper's threshold that
    holds a step back until enough of them carry a signal (DynamicSampling does this better).
    """

    singleton: Singleton = "zero"

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        scale = keep.sum() / (totals[keep] != 0).sum().clamp(min=1)
        values = by_group(rollouts, keep, totals, lambda r: less_mean(r, self.singleton))
        return to_credit(values * scale, keep, rollouts, scores)


@dataclass(frozen=True)
class MedianNorm(AdvantageHooks):
    """A = (r - median) / (max(MAD, floor) + eps); the sample that is the median is dropped (MC-GRPO, arXiv:2601.22582).

    MAD is the median of |r - median|; medians are the lower ones. Ask for group_size = G + 1 to train on G.
    The code of the paper has no floor, so binary rewards give |A| = 1 / eps = 1000; set floor=0 for that.
    With ties several samples have A = 0, and one of them is dropped.
    """

    eps: NonNegative = 1e-3
    """Added to the divisor, in units of the reward."""
    floor: NonNegative = 0.25
    """Smallest MAD to divide by, in units of the reward; 0 = none, as in the paper's code."""

    min_group_size = 3

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        values = by_group(rollouts, keep, totals, self._normalize)
        is_median = by_group(rollouts, keep, totals, self._median_row) > 0
        return to_credit(values, keep & ~is_median, rollouts, scores)

    def _normalize(self, rewards: Tensor) -> Tensor:
        distance = rewards - rewards.median()
        return distance / (distance.abs().median().clamp(min=self.floor) + self.eps)

    def _median_row(self, rewards: Tensor) -> Tensor:
        chosen = torch.zeros_like(rewards)
        chosen[rewards.median(dim=0).indices] = 1
        return chosen


@dataclass(frozen=True)
class TokenAverage(Compared):
    """A = (r - mean) / (deviation + eps) over all actions of the group, so that an answer counts once per action (HAPO).

    Code starriver030515/HAPO. The deviation of actions is the biased one. A group with an advantage of `most` or more takes rows
    in place of actions, and the unbiased deviation.
    """

    eps: NonNegative = 1e-6
    most: Positive = 5.0
    """An advantage this large shows that a few actions are set against all the others."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        values = by_group(rollouts, keep, totals, self._standardize, lengths(rollouts, totals))
        return to_credit(values, keep, rollouts, scores)

    def _standardize(self, rewards: Tensor, counts: Tensor) -> Tensor:
        values = standardize(rewards, ddof=0, eps=self.eps, weights=counts)
        if bool((values.abs() >= self.most).any()):
            values = standardize(rewards, ddof=1, eps=self.eps)
        return values


@dataclass(frozen=True)
class VirtualBest(AdvantageHooks):
    """A = (r - mean') / (deviation' + eps), both over the group and `count` virtual samples of reward `best` (NGRPO).

    NGRPO, arXiv:2509.18851: where all samples are wrong, all get the same negative advantage, -1/3 for eight of them. Groups in
    which every reward is `best` get 0.
    """

    best: Number = 1.0
    """The total reward of a perfect sample."""
    count: Count = 1
    """Virtual samples per group."""
    eps: NonNegative = 1e-6

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError when a total is above `best`."""
        totals, keep = totals_and_keep(scores)
        most = float(totals[keep].max()) if bool(keep.any()) else self.best
        if most > self.best + 1e-6:
            raise ValueError(
                f"a total reward is {most:g}, above VirtualBest.best = {self.best:g}: set algorithm.advantage.best to the "
                "largest total that the rewards of this run can give"
            )
        return to_credit(by_group(rollouts, keep, totals, self._normalize), keep, rollouts, scores)

    def _normalize(self, rewards: Tensor) -> Tensor:
        completed = torch.cat([rewards, rewards.new_full((self.count,), self.best)])
        if bool((completed == completed[0]).all()):
            return torch.zeros_like(rewards)
        mean, deviation = moments(completed, ddof=1)
        return (rewards - mean) / (deviation + self.eps)


@dataclass(frozen=True)
class OnTop(PartHooks):
    """The base of advantages that compute an inner A first and modify it."""

    inner: GroupNorm = field(default_factory=GroupNorm)
    """The advantage A."""

    @property
    def min_group_size(self) -> int:
        return self.inner.min_group_size


@dataclass(frozen=True)
class Bold(OnTop):
    """A <- (1 + gain (r - group mean)) A (HART's AP-GRPO, eq. 6).

    HART, arXiv:2602.23615. The mean over a group is no longer 0. This is the same as weighting the surrogate, because none of its
    bounds depends on A's size.
    """

    gain: NonNegative = 0.6
    """Per unit of reward; 0.6 is the paper's."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        lead = by_group(rollouts, keep, totals, lambda rewards: rewards - rewards.mean())
        credit = self.inner(scores, rollouts)
        weight = (1 + self.gain * lead).to(credit.values)[:, None]
        return Credit(credit.values * weight, credit.keep, credit.actions)


@dataclass(frozen=True)
class GoodTempered(OnTop):
    """A = 1 for tempered rows with A > above, at most `most` of a step; the other tempered rows are dropped (AEPO, see Tempered).

    Rows at the run's temperature keep the inner advantage. The paper's code replaces the first rows of the batch with these; here
    they are added.
    """

    above: NonNegative = 0.05
    """What a tempered row's advantage within its own group must exceed."""
    most: Count = 60
    """How many tempered rows train, earliest first; the paper's code halves it above the target."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit, mask = self.inner(scores, rollouts), rollouts.action_mask
        heated = torch.tensor([sample.temperature is not None for _, sample in rollouts.samples()], dtype=torch.bool)
        mean = torch.where(mask, credit.values, 0.0).sum(1) / mask.sum(1).clamp(min=1)
        good = heated & credit.keep & (mean > self.above)
        good = good & (good.long().cumsum(0) <= self.most)
        values = torch.where(good[:, None], mask.to(credit.values), credit.values)
        return Credit(values, credit.keep & (good | ~heated), credit.actions)


@dataclass(frozen=True)
class Halves(PartHooks):
    """A = cross (a r - b mean of the other half) + (1 - cross) (r - mean of its own half): CANON, arXiv:2509.23962.

    A group is sorted by length or by mean entropy and cut in the middle (the odd sample goes to the upper half). By length a =
    favour for the long half and b = favour for the short one; by entropy a = favour for the low half and b = favour for the
    high one; otherwise they are 1. The paper divides by the longest completion: take the aggregation FixedLength.
    """

    by: Literal["length", "entropy"] = "length"
    """What the group is sorted by; entropy is the mean over the actions, under the weights that sampled."""
    cross: Share = 0.5
    """Weight of the comparison with the other half; at 0.5, with favour = 1 and groups of even size, A is r - group mean."""
    favour: Annotated[float, Range(0, high=10)] = 1.0
    """Below 1 it makes long answers (or those of low entropy) worth less against the other half; 1 favours none."""

    min_group_size = 2

    @property
    def reads(self) -> tuple[Reading, ...]:
        """Found among what `rollouts` recorded."""
        return (OLD_ENTROPY,) if self.by == "entropy" else ()

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        key = lengths(rollouts, totals)
        if self.by == "entropy":
            key = masked_mean(rollouts.recorded[OLD_ENTROPY].to(totals), rollouts.action_mask, dim=1)
        return to_credit(by_group(rollouts, keep, totals, self._compare, key), keep, rollouts, scores)

    def _compare(self, rewards: Tensor, key: Tensor) -> Tensor:
        if len(rewards) == 1:
            return torch.zeros_like(rewards)
        upper = torch.zeros(len(rewards), dtype=torch.bool)
        upper[key.argsort(stable=True)[len(rewards) // 2 :]] = True
        disfavoured = upper if self.by == "length" else ~upper
        high, low = rewards[upper].mean(), rewards[~upper].mean()
        own, other = torch.where(upper, high, low), torch.where(upper, low, high)
        mine = rewards * torch.where(disfavoured, self.favour, 1.0)
        theirs = other * torch.where(disfavoured, 1.0, self.favour)
        return self.cross * (mine - theirs) + (1 - self.cross) * (rewards - own)


class OfPattern(Compared):
    """The declarations of an advantage that looks into texts; raises ValueError for no regular expression."""

    pattern: str

    def __post_init__(self) -> None:
        check_ranges(self)
        try:
            re.compile(self.pattern)
        except re.error as error:
            name = f"{type(self).__name__}.pattern"
            raise ValueError(f"{name} is {self.pattern!r}, no regular expression ({error}): mend it or escape it") from error


@dataclass(frozen=True)
class Strata(OfPattern):
    """A = inside z of the stratum + (1 - inside) z of the group, z = (r - mean) / (deviation + eps) (Stratified GRPO).

    Stratified GRPO, arXiv:2510.06214, from summaries: samples are compared with those that made the same number of tool calls. A
    stratum is the number of places where `pattern` matches what the policy wrote, in all turns of an episode. The paper's value
    of `inside` was not found, 0.8 is ours; at 1 a sample that is alone in its stratum always gets 0.
    """

    pattern: str = "<tool_call>"
    """A regular expression."""
    inside: Share = 0.8
    """Weight of the comparison within the stratum."""
    eps: NonNegative = 1e-8

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        counts = [sum(len(re.findall(self.pattern, text)) for text in texts(sample)) for _, sample in rollouts.samples()]
        return to_credit(by_group(rollouts, keep, totals, self._blend, torch.tensor(counts)), keep, rollouts, scores)

    def _blend(self, rewards: Tensor, stratum: Tensor) -> Tensor:
        inside = torch.zeros_like(rewards)
        for one in set(map(int, stratum)):
            inside[stratum == one] = standardize(rewards[stratum == one], 1, self.eps)
        return self.inside * inside + (1 - self.inside) * standardize(rewards, 1, self.eps)


def texts(sample: Sample) -> list[str]:
    """The texts that the policy wrote: each turn of an episode, else the completion."""
    return [turn.text for turn in sample.turns] or [sample.text or ""]
