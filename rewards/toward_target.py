"""How far an edit has moved from its source towards a known target.

    r = 1 - (mean difference from the target) / (mean difference of the source from the target), at least 0

The target earns 1 and an unchanged source 0, as does everything that is further from the target than the source was. Pictures are
compared at no more than `detail` pixels a side; part: idle (1: as far from the target as the source, to a hundredth).

Modality: image
Range: [0, 1]
Source: own
Licence: Apache-2.0
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from mmrl import Group, Need, Prompt, Scored
from mmrl.answers.needs import columns, picture
from mmrl.runtime.pictures import Fit
from mmrl.runtime.ranges import Count, check_ranges
from mmrl.serving.media import pictures_of, sources_of, target_of


@dataclass(frozen=True)
class TowardTarget:
    """Share of the way from source to target. ValueError for prompts without picture or target, or whose target is the source."""

    detail: Count = 256
    """The longer side at which pictures are compared, in pixels."""
    fit: Fit = "resize"
    """How a source of another shape was shown to the policy: as policy.source_fit."""
    needs = Need("a picture, and the column target, another one", lambda p, *_: picture(p, *_) and columns("target")(p, *_))

    __post_init__ = check_ranges
    pointwise = True

    def __call__(self, group: Group) -> list[float | Scored | None]:
        return [self._score(picture, group.prompt) for picture in pictures_of(group)]

    def _score(self, picture: Image.Image, prompt: Prompt) -> Scored:
        share = min(1.0, self.detail / max(picture.size))
        size = max(1, round(picture.width * share)), max(1, round(picture.height * share))
        source, target = sources_of(prompt, size, self.fit)[0], target_of(prompt, size, self.fit)
        way = _difference(source, target)
        if not way:
            raise ValueError(f"the target of prompt {prompt.id!r} is its source: remove the row, nothing is to be changed")
        gone = 1 - _difference(picture.resize(size, Image.Resampling.BOX), target) / way
        return Scored(max(0.0, gone), {"idle": float(abs(gone) < 0.01)})


def _difference(one: Image.Image, other: Image.Image) -> float:
    """Mean over pixels and colours, as a share of the range."""
    first, second = (np.asarray(picture, np.float32) / 255 for picture in (one, other))
    found: Any = np.abs(first - second).mean()
    return float(found)
