"""Does the picture show the coloured shape that the caption asks for, on a clean background?

    r = (colour + side + shape + background) / 4, and 0 where nothing, or nearly everything, is drawn on

Ink is what differs from paper. With its area and its middle, and dist = distance of two colours in the RGB cube,

    colour      mean over ink of 1 - (dist(pixel, colour) - 0.1) / 0.5
    side        1 - (distance of the middle of the ink from where the shape belongs - 0.04) / 0.2, in picture sides
    shape       (IoU of the ink with the asked shape of the same area and middle - 0.75) / 0.2
    background  1 - mean dist(pixel, paper) outside of that shape / 0.2

each clipped to [0, 1]. A picture that autoencoders blur a little scores 0.9, one of another colour, shape or side 0.7.

Modality: image
Needs: columns colour, shape and side, as the data set `shapes` has them
Range: [0, 1]
Source: own
Licence: Apache-2.0
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmrl import Group, Prompt, Sample, Scored
from mmrl.core.ranges import Share, check_ranges
from mmrl.data.drawn.shapes import COLOURS, PAPER, SHAPES, Wish, ideal_mask, place


@dataclass(frozen=True)
class ShapeMatch:
    """Mean of four parts. ValueError for a sample without a picture, or a prompt without the columns."""

    ink: Share = 0.4
    """Distance from paper, in the RGB cube, from which a pixel is ink."""
    areas: tuple[Share, Share] = (0.03, 0.4)
    """Share of the picture that ink must cover."""

    __post_init__ = check_ranges

    def __call__(self, group: Group) -> list[float | Scored | None]:
        wish = _wish(group.prompt)
        return [self._score(_pixels(sample, group.prompt), wish) for sample in group.samples]

    def _score(self, pixels: Any, wish: Wish) -> Scored:
        side = len(pixels)
        stain = _distance(pixels, PAPER)
        ink = stain > self.ink
        low, high = self.areas
        if not low <= ink.mean() <= high:
            return Scored(0.0, dict.fromkeys(("colour", "side", "shape", "background"), 0.0))
        rows, columns = np.nonzero(ink)
        x, y = float(columns.mean()) + 0.5, float(rows.mean()) + 0.5
        ideal = ideal_mask(wish.shape, x, y, float(ink.sum()), side)
        overlap = np.minimum(ink, ideal).sum() / np.maximum(ink, ideal).sum()
        away = np.hypot(*np.subtract((x, y), place(wish.side, side))) / side
        around = ideal_mask(wish.shape, x, y, 1.5 * float(ink.sum()), side) == 0
        parts = {
            "colour": np.clip(1 - (_distance(pixels[ink], COLOURS[wish.colour]) - 0.1) / 0.5, 0, 1).mean(),
            "side": np.clip(1 - (away - 0.04) / 0.2, 0, 1),
            "shape": np.clip((overlap - 0.75) / 0.2, 0, 1),
            "background": np.clip(1 - stain[around].mean() / 0.2, 0, 1),
        }
        return Scored(float(np.mean(list(parts.values()))), {name: float(value) for name, value in parts.items()})


def _wish(prompt: Prompt) -> Wish:
    try:
        wish = Wish(*(prompt.columns[name] for name in Wish._fields))
    except KeyError as error:
        raise ValueError(f"prompt {prompt.id!r} has no column {error}: take prompts of the data set 'shapes'") from None
    if wish.colour not in COLOURS or wish.shape not in SHAPES:
        raise ValueError(f"prompt {prompt.id!r} asks for a {wish.colour} {wish.shape}, which cannot be drawn here")
    return wish


def _pixels(sample: Sample, prompt: Prompt) -> Any:
    if not hasattr(sample.image, "convert") or sample.image.width != sample.image.height:
        raise ValueError(f"a sample of prompt {prompt.id!r} has no square picture: this reward is for policies that draw")
    return np.asarray(sample.image.convert("RGB"), np.float32) / 255


def _distance(pixels: Any, colour: tuple[float, float, float]) -> Any:
    return np.linalg.norm(pixels - np.array(colour, np.float32), axis=-1)
