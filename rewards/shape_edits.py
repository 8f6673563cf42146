"""Did the edit change what the instruction names, and keep everything else?

    r = fulfilled * (mean of the three parts that were to be kept), and 0 where nothing, or nearly everything, is drawn on

Parts are measured against the state that the instruction asks for. Ink is what differs from that background; with its area and
its middle, and dist = distance of two colours in the RGB cube,

    colour   mean over ink of 1 - (dist(pixel, colour) - 0.1) / 0.5
    shape    (IoU of the ink with the asked shape of the same area and middle - 0.75) / 0.2
    side     1 - (distance of the middle of the ink from where the shape belongs - 0.04) / 0.2, in picture sides
    ground   1 - mean dist(pixel, background) outside of that shape / 0.2

each clipped to [0, 1]; `fulfilled` is the part that was to change. It is a product so that an unchanged picture earns nothing: a
mean of the parts would pay it 0.75. `idle` is 1 for a picture that is nearer to its source than
to the right edit.

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
from mmrl.answers.needs import picture
from mmrl.data.drawn.shape_edits import Instruction, State, draw
from mmrl.data.drawn.shapes import COLOURS, GROUNDS, SHAPES, SIDES, Jitter, ink_beside, middle
from mmrl.runtime.ranges import Share, check_ranges
from mmrl.serving.media import pictures_of, sources_of

PARTS = ("colour", "shape", "side", "ground")


@dataclass(frozen=True)
class ShapeEdits:
    """A product of what was asked and what was kept. ValueError for samples without a square picture, or without the columns."""

    ink: Share = 0.35
    """Distance from the asked background, in the RGB cube, from which a pixel is ink."""
    areas: tuple[Share, Share] = (0.03, 0.4)
    """Share of the picture that ink must cover."""
    nearer: Share = 0.5
    """Difference from the source, as a share of that from the right edit, up to which a picture counts as unchanged."""
    needs = Need("a picture, and the columns of the data set shape_edits", lambda p, *rest: picture(p, *rest) and _asked(p))

    __post_init__ = check_ranges

    def __call__(self, group: Group) -> list[float | Scored | None]:
        asked = _asked(group.prompt)
        pictures = pictures_of(group)
        if any(picture.width != picture.height for picture in pictures):
            raise ValueError(f"a sample of prompt {group.prompt.id!r} is not square: set policy.height and policy.width alike")
        return [self._score(picture, group.prompt, *asked) for picture in pictures]

    def _score(self, picture: Image.Image, prompt: Prompt, wish: State, changed: str, jitter: Jitter) -> Scored:
        pixels: Any = np.asarray(picture, np.float32) / 255
        (source,) = sources_of(prompt, picture.size)
        from_source = np.abs(pixels - np.asarray(source, np.float32) / 255).mean()
        from_edit = np.abs(pixels - draw(wish, jitter, picture.width)).mean()
        idle = float(from_source <= self.nearer * from_edit)
        parts = self._parts(pixels, wish, jitter)
        kept = float(np.mean([value for name, value in parts.items() if name != changed]))
        return Scored(parts[changed] * kept, {"fulfilled": parts[changed], "kept": kept, **parts, "idle": idle})

    def _parts(self, pixels: Any, wish: State, jitter: Jitter) -> dict[str, float]:
        """How far each of PARTS is as asked."""
        size = len(pixels)
        away_from_ground = _distance(pixels, GROUNDS[wish.ground])
        ink = away_from_ground > self.ink
        low, high = self.areas
        if not low <= ink.mean() <= high:
            return dict.fromkeys(PARTS, 0.0)
        at, overlap, around = ink_beside(wish.shape, ink)
        away = np.hypot(*np.subtract(at, middle(wish.side, jitter, size))) / size
        found = (
            np.clip(1 - (_distance(pixels[ink], COLOURS[wish.colour]) - 0.1) / 0.5, 0, 1).mean(),
            np.clip((overlap - 0.75) / 0.2, 0, 1),
            np.clip(1 - (away - 0.04) / 0.2, 0, 1),
            np.clip(1 - away_from_ground[around].mean() / 0.2, 0, 1),
        )
        return {name: float(value) for name, value in zip(PARTS, found, strict=True)}


def _asked(prompt: Prompt) -> tuple[State, str, Jitter]:
    """The state that is asked for, the part of it that is to change, and where its shape lies."""
    columns = prompt.columns
    try:
        instruction = Instruction(columns["part"], columns["value"])
        wish = instruction.after(State(*(columns[name] for name in State._fields)))
        jitter = (*columns["jitter"],)
    except (KeyError, ValueError) as error:
        raise ValueError(f"prompt {prompt.id!r} has no column {error}: take prompts of the data set 'shape_edits'") from None
    known = {"colour": COLOURS, "shape": SHAPES, "side": SIDES, "ground": GROUNDS}
    for name in PARTS:
        if getattr(wish, name) not in known[name]:
            raise ValueError(f"prompt {prompt.id!r} asks for the {name} {getattr(wish, name)!r}, which cannot be drawn here")
    return wish, instruction.part, jitter


def _distance(pixels: Any, colour: tuple[float, float, float]) -> Any:
    return np.linalg.norm(pixels - np.array(colour, np.float32), axis=-1)
