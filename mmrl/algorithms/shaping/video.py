"""Shapings of video methods: bonuses for seeing the order of frames and for answers that follow from thoughts; soft rewards."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.algorithms.beside import Beside
from mmrl.algorithms.statistics import PlainShaping, instead, reward_column, with_column
from mmrl.algorithms.views import column
from mmrl.core.readings import ANSWER_MASK, EMA_LOGPROBS
from mmrl.core.types import Reading, Rollouts, Scores
from mmrl.runtime.ranges import Count, CountOrNone, NonNegative, Number, Positive
from mmrl.runtime.tensors import masked_mean, within


@dataclass(frozen=True)
class TemporalBonus(PlainShaping, Beside):
    """Adds `temporal`: bonus where r > correct_above, if mean r >= ratio * mean r of the probes (T-GRPO, arXiv:2503.21776).

    r is one reward of a group's samples, the probes are those drawn with shuffled frames. With a single binary reward the bonus
    vanishes when advantages are standardized: it only acts together with another reward, with fractional rewards, or with
    GroupNorm(scale="none"). Groups without probes have no bonus.
    """

    reward: str | None = None
    view: str = "shuffled"
    """The view of the probes that are compared with."""
    bonus: Number = 0.3
    """Added where it is earned, in units of the reward, whose weight it has too."""
    ratio: NonNegative = 0.8
    """Share of the probes' mean that the mean of the samples in order must reach."""
    correct_above: Number = 0.1
    """The reward above which a sample counts as correct."""

    planners = ("Probed",)

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        accuracy, weight = reward_column(scores, self, self.reward)
        name = column(self.reward or scores.names[0], self.view)
        if name not in scores.names:
            return with_column(scores, self, "temporal", torch.full_like(accuracy, torch.nan), weight)
        probes = scores.values[:, scores.names.index(name)]
        ordered = within(rollouts.group_ids, accuracy, lambda r: r.nanmean().expand_as(r))
        earned = (accuracy > self.correct_above) & (ordered >= self.ratio * probes)
        bonus = torch.where(probes.isnan() | accuracy.isnan(), torch.nan, self.bonus * earned.to(accuracy))
        return with_column(scores, self, "temporal", bonus, weight)


@dataclass(frozen=True)
class LengthBonus(PlainShaping):
    """Adds `length_band`: bonus for correct rollouts of low to high actions, if several of the group are correct.

    Video-R1 (arXiv:2503.21776): thoughts long enough to hold an argument, and no longer.
    """

    reward: str | None = None
    low: CountOrNone = 320
    """Fewest actions (tokens) of a rollout that earns it."""
    high: Count = 512
    """Most actions (tokens) of a rollout that earns it."""
    bonus: Number = 0.2
    """Added where it is earned, in units of the reward, whose weight it has too."""
    correct_above: Number = 0.1
    """The reward above which a rollout counts as correct."""

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        accuracy, weight = reward_column(scores, self, self.reward)
        correct = accuracy > self.correct_above
        several = within(rollouts.group_ids, correct.to(accuracy), lambda c: (c.sum() > 1).to(c).expand_as(c)) > 0
        length = rollouts.action_mask.sum(1)
        earned = correct & several & (length >= self.low) & (length <= self.high)
        return with_column(
            scores, self, "length_band", torch.where(accuracy.isnan(), torch.nan, self.bonus * earned.to(accuracy)), weight
        )


@dataclass(frozen=True)
class SoftReward(PlainShaping):
    """r >= tau: tau + rise ln(r - tau + 1); r < tau: tau - (e^(fall (tau - r)) - 1) / (e^fall - 1) (TempSamp-R1).

    arXiv:2509.18056. Adds `<reward>_soft` with the reward's weight, and keeps the reward itself for the log: among good answers
    differences count little, among bad ones much, so an injected ground truth does not drown the policy's own samples.
    """

    reward: str | None = None
    """None: the first reward."""
    tau: Number = 0.8
    """The reward where the two curves meet."""
    rise: NonNegative = 0.01
    """Slope right above tau."""
    fall: Positive = 1.0
    """Bend below tau, per unit of reward: the larger, the steeper far below."""

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        return instead(scores, self, self.reward, "soft", self.soften)

    def soften(self, rewards: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        above = self.tau + self.rise * (rewards - self.tau).clamp(min=0).log1p()
        below = self.tau - (self.fall * (self.tau - rewards)).expm1() / torch.tensor(self.fall).to(rewards).expm1()
        return torch.where(rewards >= self.tau, above, below)


@dataclass(frozen=True)
class InjectedScale(PlainShaping, Beside):
    """Adds `<reward>_scaled`: scale * r for injected samples, r for the policy's own (TempSamp-R1's "reward downscaling")."""

    reward: str | None = None
    """None: the first reward."""
    scale: NonNegative = 0.8
    """Factor of an injected sample's reward."""

    planners = ("WithTruth", "WithExpert", "Refinements")

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        given = torch.tensor([sample.role == "injected" for _, sample in rollouts.samples()], dtype=torch.bool)
        factor = torch.ones_like(scores.values[:, 0]).masked_fill(given, self.scale)
        return instead(scores, self, self.reward, "scaled", lambda r: r * factor)


@dataclass(frozen=True)
class ConsistencyBonus(PlainShaping):
    """Adds `consistency`: coef r for right answers the averaged policy expects, too, after the same thought (GRPO-CARE).

    arXiv:2506.16141. Confidence c = min(exp(mean ema log-prob of the answer's tokens), most). Right = r > correct_above and
    r >= mean r; expected = c >= mean c of the right ones - margin. Means are over the group (the code of the paper: over one
    process's batch). Where none is right none gets a bonus.
    """

    reward: str | None = None
    coef: NonNegative = 0.5
    """The bonus in shares of the reward."""
    most: Number = 0.95
    """Confidence, a probability, beyond which more does not count."""
    margin: Number = 0.01
    """Probability by which a sample may stay below the mean confidence of the right ones."""
    correct_above: Number = 0.1
    """The reward above which a sample counts as right."""

    reads = (EMA_LOGPROBS, ANSWER_MASK)

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        accuracy, weight = reward_column(scores, self, self.reward)
        answers = (frozen[ANSWER_MASK] > 0) & rollouts.action_mask
        confidence = masked_mean(frozen[EMA_LOGPROBS], answers, dim=1).to(accuracy).exp().clamp(max=self.most)
        rows = torch.stack([accuracy, confidence], dim=1)
        earned = within(rollouts.group_ids, rows, lambda x: self._bonus_rows(x[:, 0], x[:, 1])[:, None].to(x).expand_as(x))[:, 0]
        return with_column(scores, self, "consistency", self.coef * accuracy * earned, weight)

    def _bonus_rows(self, accuracy: Float[Tensor, " g"], confidence: Float[Tensor, " g"]) -> Bool[Tensor, " g"]:
        right = (accuracy > self.correct_above) & (accuracy >= accuracy.nanmean())
        # No right row: the mean is NaN, and nothing is at least NaN.
        return right & (confidence >= confidence[right].mean() - self.margin)
