"""Does an edited picture keep everything that was not to be changed?

    r = 1 - (mean difference from the source, outside of the mask) / limit, at least 0; and 0 for a picture left as it was

A mask (column `mask`: a path or a PIL image of the source's size) is white where the picture may change; without one every pixel
counts. Differences are shares of a pixel's range, at no more than `detail` pixels a side. Alone it favours small changes: weigh
it together with a reward for the requested edit. Parts: difference (outside of the mask), and idle (1: unchanged), whose mean
says how often the policy did nothing.

Modality: image
Range: [0, 1]
Source: the image_similarity of Flow-GRPO's edits (github.com/yifan123/flow_grpo), by pixels and outside of a mask
Licence: Apache-2.0
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from mmrl import Group, Need, Prompt, Scored
from mmrl.answers.needs import picture
from mmrl.runtime.pictures import Fit
from mmrl.runtime.ranges import Count, PositiveShare, Share, check_ranges
from mmrl.serving.media import mask_of, pictures_of, sources_of


@dataclass(frozen=True)
class KeepsRest:
    """Likeness to the prompt's first picture. ValueError for prompts without a picture, or masks of another size or all white."""

    limit: PositiveShare = 0.25
    """The mean difference that earns nothing."""
    same: Share = 0.01
    """The mean difference of the whole picture up to which it counts as unchanged."""
    detail: Count = 256
    """The longer side at which pictures are compared, in pixels: grain that an autoencoder leaves should not cost."""
    fit: Fit = "resize"
    """How a source of another shape was shown to the policy: as policy.source_fit."""
    needs = Need("a picture; the column mask helps", picture)

    __post_init__ = check_ranges
    pointwise = True

    def __call__(self, group: Group) -> list[float | Scored | None]:
        return [self._score(picture, group.prompt) for picture in pictures_of(group)]

    def _score(self, picture: Image.Image, prompt: Prompt) -> Scored:
        share = min(1.0, self.detail / max(picture.size))
        size = max(1, round(picture.width * share)), max(1, round(picture.height * share))
        source = sources_of(prompt, size, self.fit)[0]
        away = np.abs(_pixels(picture.resize(size, Image.Resampling.BOX)) - _pixels(source)).mean(-1)
        mask = mask_of(prompt, size, self.fit)
        kept = np.ones(away.shape) if mask is None else 1 - np.asarray(mask, np.float32) / 255
        if not kept.sum() > 0:
            raise ValueError(f"the mask of prompt {prompt.id!r} is white all over, so nothing is to be kept: leave it out")
        idle = bool(away.mean() <= self.same)
        difference = float((away * kept).sum() / kept.sum())
        value = 0.0 if idle else max(0.0, 1 - difference / self.limit)
        return Scored(value, {"difference": difference, "idle": float(idle)})


def _pixels(picture: Image.Image) -> Any:
    return np.asarray(picture, np.float32) / 255
