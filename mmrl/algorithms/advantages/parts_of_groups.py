"""Samples compared with the part of their group that is like them, or with the part that is not."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from mmrl.algorithms.statistics import Compared, by_group, lengths, standardize, to_credit, totals_and_keep
from mmrl.core.hooks import PartHooks
from mmrl.core.readings import OLD_ENTROPY
from mmrl.core.types import Credit, Reading, Rollouts, Sample, Scores
from mmrl.runtime.ranges import NonNegative, Range, Share, check_ranges
from mmrl.runtime.tensors import masked_mean


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


@dataclass(frozen=True)
class Strata(Compared):
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

    def __post_init__(self) -> None:
        check_ranges(self)
        check_pattern(self.pattern, "Strata.pattern")

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


def check_pattern(pattern: str, name: str) -> None:
    """Raise ValueError where the regular expression of a setting cannot be read."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{name} is {pattern!r}, no regular expression ({error}): mend it or escape it") from error
