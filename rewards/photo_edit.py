"""Does an edit of a photo, written as named parameters, agree with the true one?

    r = mean of its parts: names (shared / all), values (mean of max(0, 1 - |difference| / threshold) over shared names), and
    picture = exp(-.015 mean distance in Lab) of the photo under both edits

The answer is a JSON object such as `{"Exposure2012": 0.5, "Clarity2012": 12}`, fenced or bare; what is none, or cannot be
rendered, scores 0. Exposure, contrast, colours and tone curves are judged by the picture alone, and mmrl's own renderer knows
Exposure2012, Temperature, Contrast2012 and ToneCurvePV2012. In JarvisArt the picture is Lightroom's, and is compared with the
unedited photo, so that doing nothing scores 1. Where the true edit has masks ("MaskGroupBasedCorrections"), how they agree is a
fourth part: linear gradients, one to a mask, as other kinds are refused; the renderer leaves masks out.

Modality: text
Range: [0, 1]
Source: JarvisArt's GRPO-R, arXiv:2506.17612; azaj01/JarvisArt@924da2b
Licence: own code Apache-2.0
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from mmrl import Group, Need, Prompt, Sample, Scored
from mmrl.answers.block import answer_block, completion_text, strip_fence
from mmrl.answers.photos import (
    MASKS,
    THRESHOLDS,
    Array,
    Edits,
    agreement,
    gradient_of,
    lab_of,
    likeness,
    masks_agreement,
    masks_of,
    render,
)
from mmrl.runtime.pictures import open_upright
from mmrl.runtime.ranges import Count, Positive, check_ranges

__all__ = ["PhotoEdit"]
MASKED = "masks"


def edits_of(text: str) -> Edits | None:
    """The JSON object of an answer; None where it holds none."""
    try:
        found: object = json.loads(strip_fence(answer_block(text)))
    except (ValueError, RecursionError):
        return None
    return cast(Edits, found) if isinstance(found, dict) else None


@dataclass(frozen=True)
class PhotoEdit:
    """Agreement of names, values and pictures."""

    thresholds: Mapping[str, Positive] = field(default_factory=lambda: dict(THRESHOLDS))
    """Parameter -> the difference that is worth nothing; of others 1."""
    k: Positive = 0.015
    """How fast the part of the picture falls with the distance in Lab."""
    side: Count = 256
    """Photos are compared within a square of so many pixels a side."""
    needs = Need("a picture, and an object of edits as answer", lambda prompt, reward, _: reward.photo(prompt))

    pointwise = True

    __post_init__ = check_ranges

    def photo(self, prompt: Prompt) -> tuple[Array, Edits] | None:
        """The photo in [0, 1] and the true edits; None without an answer, ValueError for ones that cannot be rendered."""
        if prompt.answer is None:
            return None
        if not isinstance(prompt.answer, dict) or not prompt.answer or not prompt.media:
            raise ValueError(f"prompt {prompt.id!r} needs a picture and an object of edits as answer, not {prompt.answer!r}")
        image = open_upright(prompt.media[0]).convert("RGB")
        image.thumbnail((self.side, self.side))
        pixels, edits = np.asarray(image, dtype=np.float64) / 255, cast("dict[str, Any]", prompt.answer)
        try:
            render(pixels[:1, :1], edits)
        except ValueError as error:
            raise ValueError(f"prompt {prompt.id!r}: {error}") from None
        if MASKS in edits and (not masks_of(edits[MASKS]) or None in map(gradient_of, masks_of(edits[MASKS]))):
            raise ValueError(
                f"prompt {prompt.id!r}: {MASKS} must be a list of corrections with one linear gradient each "
                '({"What": "Mask/Gradient"}, with ZeroX, ZeroY, FullX and FullY): no other kind of mask is compared'
            )
        return pixels, edits

    def __call__(self, group: Group) -> list[float | Scored | None]:
        shown = self.photo(group.prompt)
        if shown is None:
            return [None] * len(group.samples)
        photo, wanted = shown
        target = lab_of(render(photo, wanted))
        return [self._score(group.prompt, sample, photo, wanted, target) for sample in group.samples]

    def _score(self, prompt: Prompt, sample: Sample, photo: Array, wanted: Edits, target: Array) -> Scored:
        said = edits_of(completion_text(prompt, sample))
        try:
            drawn = None if said is None else render(photo, said)
        except ValueError:
            drawn = None
        if said is None or drawn is None:
            named = ("names", "values", "picture", *([MASKED] if MASKS in wanted else []))
            return Scored(0.0, {**dict.fromkeys(named, 0.0), "unparsed": 1.0})
        parts = {**agreement(said, wanted, self.thresholds), "picture": likeness(lab_of(drawn), target, self.k)}
        if MASKS in wanted:
            parts[MASKED] = masks_agreement(said.get(MASKS), wanted[MASKS])
        return Scored(sum(parts.values()) / len(parts), {**parts, "unparsed": 0.0})
