"""A surrogate for groups of which half begins without a thought."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from mmrl.algorithms.begun import HALVES, part_numbers
from mmrl.algorithms.beside import Beside, Parts, refuse_other_planner
from mmrl.algorithms.objectives.surrogates import Clip, Values
from mmrl.algorithms.objectives.terms import ProportionalToAdvantage
from mmrl.core.readings import OLD_LOGPROBS
from mmrl.core.types import Batch, ClipRange, Reading, Scope
from mmrl.runtime.ranges import NonNegative, Range, Share, check_ranges


@dataclass(frozen=True)
class EvenStart(ProportionalToAdvantage, Beside):
    """Clip with one ratio per rollout, as if both beginnings had been drawn: the first token's old log p is that of its share.

    AdaptThink, arXiv:2505.13417, for groups of the planner ThinkOrNot: a beginning that has become rarer than half counts less.
    """

    low: Share = 0.2
    """The ratio counts as at least 1 - low."""
    high: NonNegative = 0.2
    """The ratio counts as at most 1 + high."""
    share: Annotated[float, Range(above=0, below=1)] = 0.5
    """How likely the first half's beginning counts as; the other's is 1 - share."""

    __post_init__ = check_ranges
    at_first_update = None

    @property
    def scope(self) -> Scope:
        return "rollout"

    @property
    def clip_range(self) -> ClipRange:
        return ClipRange(self.low, self.high, "rollout")

    def check_beside(self, algorithm: Parts) -> None:
        """Raises ValueError without the planner ThinkOrNot."""
        refuse_other_planner(self, algorithm, "ThinkOrNot", HALVES)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask, old = batch.rollouts.action_mask, readings[OLD_LOGPROBS]
        short = (part_numbers(batch.rollouts, 2) == 0).to(mask.device)[:, None]
        drawn = torch.where(short, math.log(self.share), math.log(1 - self.share)).to(old)
        is_first = mask & (mask.cumsum(1) == 1)
        return Clip(self.low, self.high, "rollout")({**readings, OLD_LOGPROBS: torch.where(is_first, drawn, old)}, batch)
