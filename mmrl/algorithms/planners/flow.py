"""Planners for image RL: which weights sample, and which seeds are worth drawing in full."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mmrl.algorithms.planners.asked import Remembering
from mmrl.algorithms.planners.base import Once
from mmrl.core.types import Group, Prompt, Request, Revision, Tempering
from mmrl.runtime.ranges import Count, Share


@dataclass(frozen=True)
class SampleFrom(Once):
    """Samples every prompt once, under weights kept alongside the live ones: DiffusionNFT's old policy is an average of them."""

    model: Literal["ema", "ref"] = "ema"
    """ema: the averaged weights; ref: the weights before training."""

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        return [replace(request, model=self.model) for request in super().first(prompts, group_size, first_id, seed)]


@dataclass(frozen=True)
class Scouts(Remembering):
    """Draws many samples of a prompt in a few steps; the seeds of the best and the worst are drawn again in full, and train.

    Sol-RL, arXiv:2604.06916. Scouts are scored and then gone: rewards, means and deviations are those of the samples drawn again,
    of which there are `algorithm.group_size`. The initial noise must decide what is drawn: solvers without noise alone will do.
    """

    each: Count = 4
    """Scouts per sample that is drawn again."""
    steps: Count = 6
    """Of a scout; too few change the order."""
    best: Share = 0.5
    """Share of the samples that are drawn again for being the best; the others are the worst."""
    model: Literal["policy", "ema", "ref"] = "ema"
    """Which weights sample, scouts and all."""

    max_rounds = 2
    scouts = True

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        few = Tempering(num_steps=self.steps)
        asked = super().first(prompts, group_size, first_id, seed)
        return [replace(one, count=self.each * group_size, model=self.model, tempering=few) for one in asked]

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Ask for the best and the worst scouts again, as groups of their own; scouts without a score are left out."""
        if round_index:
            return Revision()
        found: list[Request] = []
        for group in groups:
            asked = self.asked.requests[group.id]
            top = round(self.best * asked.count)
            samples = tuple(sorted(extremes(rewards[group.id], top, asked.count - top)))
            again = replace(asked, count=len(samples), group_id=-1 - len(found), model=self.model)
            found += [replace(again, tempering=Tempering(samples=samples))] if samples else []
        return Revision(found, drop_groups=frozenset(group.id for group in groups))


def extremes(rewards: Sequence[float], top: int, bottom: int) -> list[int]:
    """The places of the best, the best first, and of the worst of the others; of equal ones the first are taken."""
    known = [i for i, value in enumerate(rewards) if not math.isnan(value)]
    best = sorted(known, key=lambda i: -rewards[i])[:top]
    return [*best, *sorted((i for i in known if i not in best), key=lambda i: rewards[i])[:bottom]]
