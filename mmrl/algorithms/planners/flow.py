"""Planners for image RL: which weights sample, which seeds are worth drawing in full, and what is taught in place of drawing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from mmrl.algorithms.planners.base import Once, Remembering
from mmrl.algorithms.planners.taught import refuse_both_ways
from mmrl.core.samples import IMAGE, VIDEO, Video, is_named, kind_of
from mmrl.core.types import Group, Prompt, Request, Revision, Tempering
from mmrl.runtime.ranges import Count, Share


@dataclass(frozen=True)
class SampleFrom(Once):
    """Samples every prompt once, under weights kept alongside the live ones: DiffusionNFT's old policy is an average of them."""

    model: Literal["ema", "ref"] = "ema"
    """ema: the averaged weights; ref: the weights before training."""

    def asked(self, request: Request) -> Sequence[Request]:
        return (replace(request, model=self.model),)


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

    def asked(self, request: Request) -> Sequence[Request]:
        few = Tempering(num_steps=self.steps)
        return (replace(request, count=self.each * request.count, model=self.model, tempering=few),)

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Ask for the best and the worst scouts again, as groups of their own; scouts without a score are left out."""
        if round_index:
            return Revision()
        found: list[Request] = []
        for group in groups:
            asked = self.requests[group.id]
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


SHOWN = ("picture", "clip")
"""The columns that are looked for where none is named."""


def refuse_nothing_shown(prompt: Prompt, column: str) -> None:
    """Raise ValueError for a prompt without a picture or clip in this column."""
    found: object = prompt.columns.get(column)
    if kind_of(found) in (IMAGE, VIDEO) and isinstance(found, str | Path | Video | Image.Image | np.ndarray):
        return
    known = ", ".join(sorted(prompt.columns)) or "none"
    what = "has nothing" if found is None else f"has {str(found)[:80]!r}"
    raise ValueError(
        f"prompt {prompt.id!r} {what} in the column {column!r}, where a stage that teaches finds a picture or a clip (its "
        f'columns: {known}): take data.use = "pictures", or name another column'
    )


@dataclass(frozen=True)
class TaughtPictures(Once):
    """One row per prompt: the picture or clip that the data has for it.

    Take the advantage Demonstrated, the term Matching and the schedule Forward with it.
    """

    column: str = ""
    """The column with the picture or clip; `target` of the data set edits. Empty: `picture`, else `clip`."""

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without a picture or clip."""
        for prompt in prompts:
            refuse_nothing_shown(prompt, *self.columns_of(prompt))

    def columns_of(self, prompt: Prompt) -> tuple[str, ...]:
        """The columns of a prompt that are taught."""
        return (self.column or next((name for name in SHOWN if name in prompt.columns), SHOWN[0]),)

    def asked(self, request: Request) -> Sequence[Request]:
        return [replace(request, count=1, role="injected", written=column) for column in self.columns_of(request.prompt)]


@dataclass(frozen=True)
class TaughtPairs(Once):
    """Two rows per prompt: the picture or clip that the data prefers, and the one that it does not.

    Take the advantage Preferred, the term DenoisingPreference and the schedule Forward with times.shared with it.
    """

    chosen: str = "chosen"
    """The column with the preferred picture or clip."""
    rejected: str = "rejected"
    """The column with the other one."""

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without a pair, with one file twice, or that another prompt contradicts."""
        for prompt in prompts:
            for column in self.columns_of(prompt):
                refuse_nothing_shown(prompt, column)
            if np.array_equal(np.asarray(prompt.columns[self.chosen]), np.asarray(prompt.columns[self.rejected])):
                raise ValueError(
                    f"prompt {prompt.id!r} has the same picture in the columns {self.chosen!r} and {self.rejected!r}, and such a "
                    "pair teaches nothing: remove it from the data"
                )
        refuse_both_ways((p, (name_of(p.columns[self.chosen]), name_of(p.columns[self.rejected]))) for p in prompts)

    def columns_of(self, prompt: Prompt) -> tuple[str, ...]:
        """The columns of a prompt that are taught."""
        return self.chosen, self.rejected

    def asked(self, request: Request) -> Sequence[Request]:
        return [replace(request, count=1, role="injected", written=column) for column in self.columns_of(request.prompt)]


def name_of(shown: object) -> str:
    """Equal for equal files, and for nothing else."""
    return str(shown) if is_named(shown) else f"{id(shown)}"
