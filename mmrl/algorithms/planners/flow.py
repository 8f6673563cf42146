"""Planners for image RL: which weights sample."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from mmrl.algorithms.planners.base import Once
from mmrl.core.hooks import PlannerHooks
from mmrl.core.types import Group, Prompt, Request, Revision, Scores


@dataclass(frozen=True)
class SampleFrom(PlannerHooks):
    """Samples every prompt once, under weights kept alongside the live ones: DiffusionNFT's old policy is an average of them."""

    model: Literal["ema", "ref"] = "ema"
    """ema: the averaged weights; ref: the weights before training."""

    max_rounds = 1

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        return [replace(request, model=self.model) for request in Once().first(prompts, group_size, first_id, seed)]

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Tensor, wanted: int, round_index: int) -> Revision:
        return Revision()
