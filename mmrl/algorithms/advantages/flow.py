"""Advantages of image RL: which samples of a group train at all, and credit for every denoising step."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.statistics import Compared, by_group, is_rounding, moments, to_credit, totals_and_keep
from mmrl.core.hooks import AdvantageHooks, PartHooks
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import NonNegative, Positive, Range, Share


@dataclass(frozen=True)
class BestOfN(PartHooks):
    """Group advantages of all samples, of which the n / 2 best and n / 2 worst of every group train (DanceGRPO).

    arXiv:2505.07818. Nothing is normalized again after the choice. An odd n takes one more at the top.
    """

    n: Annotated[int, Range(2, 2**20)] = 8
    """Samples of a group that train: one half the best, the other half the worst."""
    norm: GroupNorm = field(default_factory=lambda: GroupNorm(eps=1e-8, zero_below=1e-6, clip=5.0))
    """The advantage that the chosen samples train on."""

    @property
    def min_group_size(self) -> int:
        return self.norm.min_group_size

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit = self.norm(scores, rollouts)
        totals = scores.total()
        chosen = by_group(rollouts, credit.keep, totals, self._choice) > 0
        return Credit(torch.where(chosen[:, None], credit.values, 0.0), chosen)

    def _choice(self, values: Tensor) -> Tensor:
        chosen = torch.zeros_like(values)
        best, worst = extremes(values, self.n)
        chosen[best] = chosen[worst] = 1
        return chosen


def extremes(values: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Indices of the ceil(n / 2) largest and the floor(n / 2) smallest of m values, each in ascending order of value."""
    order = values.argsort(stable=True)
    return order[max(0, len(order) - (n + 1) // 2) :], order[: n // 2]


@dataclass(frozen=True)
class BestWorst(AdvantageHooks):
    """A = 1 for the best sample of a group and -1 for the worst, 0 for the others: labels of online DPO and SFT.

    From Flow-GRPO's code (arXiv:2505.05470). Ties go to the first; where all are equal the second sample is best and the first
    worst. Without `worst` (SFT) all that share the maximum get 1.
    """

    worst: bool = True
    """True: the worst sample gets -1. False: it gets 0 like the others, and all that share the maximum get 1."""
    min_group_size: Annotated[int, Range(2, 2**20)] = 2
    """Fewest samples of a group: a smaller algorithm.group_size is refused."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        return to_credit(by_group(rollouts, keep, totals, self._labels), keep, rollouts, scores)

    def _labels(self, rewards: Tensor) -> Tensor:
        if not self.worst:
            return (rewards == rewards.max()).to(rewards)
        labels = torch.zeros_like(rewards)
        best, worst = int(rewards.argmax()), int(rewards.argmin())
        if best == worst:
            best, worst = min(1, len(rewards) - 1), 0
        labels[worst] = -1
        labels[best] = 1
        return labels


@dataclass(frozen=True)
class BestAgainstWorst(Compared):
    """A = 1 for the best sample of a group and -1 for its worst: one pair per group (online DPO, Flow-Factory a0b2bc5).

    Ties go to the first. All others leave every count, and so do groups whose rewards differ by rounding only: they have no
    pair, where Flow-Factory compares a sample with itself. A step without any pair trains nothing.
    """

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        credit = to_credit(by_group(rollouts, keep, totals, self._labels), keep, rollouts, scores)
        paired = (credit.values != 0).any(1)
        return Credit(credit.values, paired if bool(paired.any()) else credit.keep)

    def _labels(self, rewards: Tensor) -> Tensor:
        labels = torch.zeros_like(rewards)
        if not is_rounding(rewards, moments(rewards, 0)[1], 1e-6):
            labels[int(rewards.argmax())], labels[int(rewards.argmin())] = 1, -1
        return labels


@dataclass(frozen=True)
class StepRewards(Compared):
    """A_t = w_t [(Q_t - group mean) / (deviation + eps) + anchor Q_t], Q_t = sum_k gamma^k R_(t+k) (VGPO, arXiv:2512.12387).

    R_t is the total reward of the data that is predicted after step t, the sample's own after the last: schedule.previews must be
    on. w_t = Q_t / mean_t Q with `weigh`, else 1. With gamma, anchor and weigh off it is GRPO with a reward per step. The paper
    prints neither gamma, anchor, eps nor a clip: all of these are ours.
    """

    gamma: Share = 0.9
    """How much the reward of a later step counts; 0: only the step's own."""
    anchor: NonNegative = 0.5
    """How much the value itself counts, so that a group of equal rewards still teaches."""
    anchor_share: Share = 0.5
    """The share of the steps, from the first on, that have the anchor."""
    weigh: bool = True
    """Weigh steps by their values, which must not be negative then."""
    ddof: Annotated[int, Range(0, 1)] = 0
    eps: NonNegative = 1e-4
    zero_below: NonNegative = 1e-6
    """As in GroupNorm: steps whose rewards differ only by rounding are compared with nothing."""
    clip: Positive | None = None

    previews = True

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError for rows without rewards of their steps, and for negative ones with `weigh`."""
        _, keep = totals_and_keep(scores)
        rewards = rewards_of_steps(rollouts)
        keep = keep & ~rewards.isnan().any(1)
        values = by_group(rollouts, keep, self.values_of(rewards.nan_to_num()), self.compare)
        if self.clip is not None:
            values = values.clamp(-self.clip, self.clip)
        mask = rollouts.action_mask & keep[:, None]
        return Credit(torch.where(mask, values, 0.0).to(scores.values.dtype), keep)

    def values_of(self, rewards: Float[Tensor, "n t"]) -> Float[Tensor, "n t"]:
        """Q: the discounted sum of a step's reward and all later ones."""
        found = torch.zeros_like(rewards)
        for t in reversed(range(rewards.shape[1])):
            found[:, t] = rewards[:, t] + (self.gamma * found[:, t + 1] if t + 1 < rewards.shape[1] else 0)
        return found

    def compare(self, values: Float[Tensor, "n t"]) -> Float[Tensor, "n t"]:
        """The advantages of the rows of one group."""
        columns = [self.normalize(column) for column in values.unbind(1)]
        first = torch.arange(values.shape[1]) < self.anchor_share * values.shape[1]
        return self.weights_of(values) * (torch.stack(columns, 1) + self.anchor * values * first)

    def normalize(self, values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """One step's values compared with their group's."""
        mean, deviation = moments(values, self.ddof)
        if len(values) < 2 or is_rounding(values, deviation, self.zero_below):
            return torch.zeros_like(values)
        return (values - mean) / (deviation + self.eps)

    def weights_of(self, values: Float[Tensor, "n t"]) -> Float[Tensor, "n t"]:
        """A step's value over the mean of its row; 1 where all of them are 0."""
        if not self.weigh:
            return torch.ones_like(values)
        if bool((values < 0).any()):
            raise ValueError(
                f"StepRewards weighs steps by their rewards, which reach {float(values.min()):g}, below 0: set "
                "algorithm.advantage.weigh = false, or shift the rewards (reward.transform)"
            )
        mean = values.mean(1, keepdim=True)
        return torch.where(mean > 0, values / mean.clamp(min=1e-12), 1.0)


def rewards_of_steps(rollouts: Rollouts) -> Float[Tensor, "n t"]:
    """The total reward after every step of every row, in float64; NaN where there is none.

    Raises ValueError for rows whose steps were not scored.
    """
    width, rows = rollouts.action_mask.shape[1], list[list[float]]()
    for group, sample in rollouts.samples():
        if len(sample.values) != width:
            raise ValueError(
                f"prompt {group.prompt.id!r} has rewards of {len(sample.values)} of {width} steps, and StepRewards compares all: "
                "set algorithm.schedule.previews = true"
            )
        rows.append([value for _, value in sample.values])
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), width)
