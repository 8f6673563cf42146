"""Does the picture show the coloured shape that the caption asks for, on a clean background?

    r = (colour + side + shape + background) / 4, and 0 where nothing, or nearly everything, is drawn on

Ink is what differs from paper. With its area and its middle, and dist = distance of two colours in the RGB cube,

    colour      mean over ink of 1 - (dist(pixel, colour) - 0.1) / 0.5
    side        1 - (distance of the middle of the ink from where the shape belongs - 0.04) / 0.2, in picture sides
    shape       (IoU of the ink with the asked shape of the same area and middle - 0.75) / 0.2
    background  1 - mean dist(pixel, paper) outside of that shape / 0.2

each clipped to [0, 1]. A picture that autoencoders blur a little scores 0.9, one of another colour, shape or side 0.7. Colour and
background have a gradient; side and shape count pixels of ink, and have none.

Modality: image
Range: [0, 1]
Source: own
Licence: Apache-2.0
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mmrl import Group, Need, Prompt, Sample, Scored
from mmrl.data.drawn.shapes import COLOURS, PAPER, SHAPES, Wish, ink_beside, place
from mmrl.runtime.pictures import upright_rgb
from mmrl.runtime.ranges import Share, check_ranges


@dataclass(frozen=True)
class ShapeMatch:
    """Mean of four parts. ValueError for a sample without a picture, or a prompt without the columns."""

    ink: Share = 0.4
    """Distance from paper, in the RGB cube, from which a pixel is ink."""
    areas: tuple[Share, Share] = (0.03, 0.4)
    """Share of the picture that ink must cover."""
    needs = Need("the columns colour, shape and side, as of the data set shapes", lambda prompt, *_: _wish(prompt))

    __post_init__ = check_ranges

    def __call__(self, group: Group) -> list[float | Scored | None]:
        wish, found = _wish(group.prompt), list[float | Scored | None]()
        for sample in group.samples:
            parts = {name: float(value) for name, value in self._parts(_pixels(sample, group.prompt), wish).items()}
            found.append(Scored(float(np.mean(list(parts.values()))), parts))
        return found

    def of_pixels(self, pixels: Float[Tensor, "n 3 y x"], prompts: Sequence[Prompt]) -> Float[Tensor, " n"]:
        """The same scores with a gradient, for square pictures in [0, 1]."""
        shown = pixels.permute(0, 2, 3, 1)
        parts = [self._parts(one, _wish(prompt)) for one, prompt in zip(shown, prompts, strict=True)]
        return torch.stack([torch.stack([*own.values()]).mean() for own in parts])

    def _parts(self, pixels: Float[Tensor, "y x 3"], wish: Wish) -> dict[str, Float[Tensor, ""]]:
        side = len(pixels)
        stain = _distance(pixels, PAPER)
        inked = stain.detach() > self.ink
        ink = inked.cpu().numpy()
        low, high = self.areas
        if not low <= ink.mean() <= high:
            return dict.fromkeys(("colour", "side", "shape", "background"), 0 * pixels.sum())
        at, overlap, outside = ink_beside(wish.shape, ink)
        away = np.hypot(*np.subtract(at, place(wish.side, side))) / side
        around = torch.from_numpy(outside).to(stain.device)
        return {
            "colour": (1 - (_distance(pixels[inked], COLOURS[wish.colour]) - 0.1) / 0.5).clamp(0, 1).mean(),
            "side": stain.new_tensor(np.clip(1 - (away - 0.04) / 0.2, 0, 1)),
            "shape": stain.new_tensor(np.clip((overlap - 0.75) / 0.2, 0, 1)),
            "background": (1 - stain[around].mean() / 0.2).clamp(0, 1),
        }


def _wish(prompt: Prompt) -> Wish:
    try:
        wish = Wish(*(prompt.columns[name] for name in Wish._fields))
    except KeyError as error:
        raise ValueError(f"prompt {prompt.id!r} has no column {error}: take prompts of the data set 'shapes'") from None
    if wish.colour not in COLOURS or wish.shape not in SHAPES:
        raise ValueError(f"prompt {prompt.id!r} asks for a {wish.colour} {wish.shape}, which cannot be drawn here")
    return wish


def _pixels(sample: Sample, prompt: Prompt) -> Float[Tensor, "y x 3"]:
    if not hasattr(sample.image, "convert") or sample.image.width != sample.image.height:
        raise ValueError(f"a sample of prompt {prompt.id!r} has no square picture: this reward is for policies that draw")
    return torch.from_numpy(np.asarray(upright_rgb(sample.image, lent=True), np.float32) / 255)


def _distance(pixels: Float[Tensor, "... 3"], colour: tuple[float, float, float]) -> Float[Tensor, "..."]:
    return (pixels - pixels.new_tensor(colour)).norm(dim=-1)
