"""Surrogates for groups whose rows began otherwise: given ones beside the policy's own, halves that begin without a thought."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool
from torch import Tensor

from mmrl.algorithms.beside import HALVES, Beside, Parts, part_numbers, refuse_other_planner
from mmrl.algorithms.objectives.surrogates import Clip, Values
from mmrl.algorithms.objectives.terms import Clips, ProportionalToAdvantage, actions_only, log_ratio, ratio_metrics
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS
from mmrl.core.types import Batch, ClipRange, Reading
from mmrl.runtime.ranges import NonNegative, Range, Share


def rows_from_outside(batch: Batch) -> Bool[Tensor, "n 1"]:
    """True for rows of the role `injected`."""
    return torch.tensor([sample.role == "injected" for _, sample in batch.rollouts.samples()], dtype=torch.bool)[:, None]


@dataclass(frozen=True)
class WithRefinements(Clip):
    """-A p / (p + gamma) on injected rows, p the policy's probability; -A ratio on others, unclipped (Critique-GRPO).

    arXiv:2506.03106. The gradient of an action is largest at p = gamma and small for rare ones. With `clipped` the other rows are
    clipped as in Clip; without it the clip's settings do nothing.
    """

    gamma: NonNegative = 0.1
    """Where the gradient of an injected action is largest, a probability; 0 would train none."""
    clipped: bool = False
    """True: the policy's own rows are clipped."""

    @property
    def clip_range(self) -> ClipRange:
        return super().clip_range if self.clipped else ClipRange(math.inf, math.inf, self.level)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        if self.clipped:
            own, metrics = super().__call__(readings, batch)
        else:
            difference = log_ratio(readings, mask, self.level)
            own, metrics = -batch.advantages * difference.exp(), ratio_metrics(difference)
        p = actions_only(readings[LOGPROBS], mask).exp()
        given = rows_from_outside(batch).to(p.device)
        return torch.where(given, -batch.advantages * p / (p + self.gamma), own), metrics


@dataclass(frozen=True)
class WithImitation(Clip):
    """-A log policy on injected rows, Clip on others: an expert's answer is imitated as far as its advantage says (AHPO).

    arXiv:2510.08540.
    """

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        own, metrics = super().__call__(readings, batch)
        logprobs = actions_only(readings[LOGPROBS], batch.rollouts.action_mask)
        return torch.where(rows_from_outside(batch).to(own.device), -batch.advantages * logprobs, own), metrics


@dataclass(frozen=True)
class EvenStart(Clips, ProportionalToAdvantage, Beside, level="rollout", at_first_update=None):
    """Clip with one ratio per rollout, as if both beginnings had been drawn: the first token's old log p is that of its share.

    AdaptThink, arXiv:2505.13417, for groups of the planner ThinkOrNot: a beginning that has become rarer than half counts less.
    """

    low: Share = 0.2
    """The ratio counts as at least 1 - low."""
    high: NonNegative = 0.2
    """The ratio counts as at most 1 + high."""
    share: Annotated[float, Range(above=0, below=1)] = 0.5
    """How likely the first half's beginning counts as; the other's is 1 - share."""

    def check_beside(self, algorithm: Parts) -> None:
        """Raises ValueError without the planner ThinkOrNot."""
        refuse_other_planner(self, algorithm, "ThinkOrNot", HALVES)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask, old = batch.rollouts.action_mask, readings[OLD_LOGPROBS]
        short = (part_numbers(batch.rollouts, 2) == 0).to(mask.device)[:, None]
        drawn = torch.where(short, math.log(self.share), math.log(1 - self.share)).to(old)
        is_first = mask & (mask.cumsum(1) == 1)
        return Clip(self.low, self.high, "rollout")({**readings, OLD_LOGPROBS: torch.where(is_first, drawn, old)}, batch)
