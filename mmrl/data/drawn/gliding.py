"""Coloured shapes that glide over light paper: the clips a tiny video generator is taught to draw, and what they are judged by.

A caption is "a red circle moves left". `Glides` are the clips an uncurated collection would have: many captions belong to another
clip, and many clips flicker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmrl.data.drawn.shapes import COLOURS, PAPER, SHAPES, SIDES, every_fourth, ideal_mask, to_bytes

Clip = NDArray[np.float32]
"""(frames, side, side, 3) in [0, 1]."""
WAYS = {"left": SIDES["left"], "right": SIDES["right"], "up": SIDES["top"], "down": SIDES["bottom"]}
"""Name -> direction of the movement, y downwards."""
REACH = 0.22
"""From the middle of the paper to either end of the path, as a share of the side."""


class Glide(NamedTuple):
    """A coloured shape and the way it moves, as a caption asks for it."""

    colour: str
    shape: str
    way: str

    @property
    def caption(self) -> str:
        return f"a {self.colour} {self.shape} moves {self.way}"


GLIDES = tuple(Glide(*words) for words in product(COLOURS, SHAPES, WAYS))
HELD_OUT = every_fourth(GLIDES, COLOURS, SHAPES, WAYS)
"""Combinations that are held out; every colour, shape and way occurs in them equally often."""
TRAIN = tuple(glide for glide in GLIDES if glide not in HELD_OUT)


def draw(
    glide: Glide,
    side: int,
    frames: int,
    rng: np.random.Generator | None = None,
    flickering: bool = False,
    from_middle: bool = False,
) -> Clip:
    """The clip of a shape that glides evenly through the middle; with a generator, place and size vary a little.

    One that starts from the middle and ends at the edge has a first frame that does not tell the way. A flickering clip changes
    its tint in every frame and its shape jumps by a few pixels; it needs a generator, else ValueError.
    """
    if flickering and rng is None:
        raise ValueError("a clip flickers by chance: give `draw` a generator of random numbers")
    along = np.array(WAYS[glide.way], float)
    across = np.array([-along[1], along[0]])
    early, aside, large = np.zeros(3) if rng is None else rng.uniform(-1, 1, 3)
    area = side**2 * (0.11 + 0.02 * large)
    pictures: list[NDArray[np.float64]] = []
    spread = (0.04, 0.04) if from_middle else (0.02, 0.06)
    path = np.linspace(0, 1.5, frames) if from_middle else np.linspace(-1, 1, frames)
    for t in path:
        middle = side * (0.5 + along * (REACH * t + spread[0] * early) + across * spread[1] * aside)
        tint = np.ones(3)
        if flickering and rng is not None:
            middle = middle + rng.uniform(-side, side, 2) * 0.08
            tint = 1 - rng.uniform(0, 0.3) * rng.uniform(0.5, 1, 3)
        mask = ideal_mask(glide.shape, float(middle[0]), float(middle[1]), area, side)[..., None]
        pictures.append((mask * np.array(COLOURS[glide.colour]) + (1 - mask) * np.array(PAPER)) * tint)
    return np.stack(pictures).astype(np.float32)


@dataclass(frozen=True)
class Glides:
    """Clips and captions to learn from, with the faults of an uncurated collection."""

    side: int = 32
    frames: int = 5
    confused: float = 0.5
    """Share of captions that belong to another clip."""
    flickering: float = 0.5
    """Share of clips that flicker."""
    from_middle: bool = False
    """Shapes start in the middle."""

    @property
    def words(self) -> Sequence[str]:
        """Every word of the captions."""
        return (*COLOURS, *SHAPES, *WAYS, "a", "moves")

    def batch(self, rng: np.random.Generator, size: int) -> tuple[NDArray[np.uint8], list[str]]:
        """`size` clips (size, frames, side, side, 3) and their captions."""
        shown = [TRAIN[i] for i in rng.integers(len(TRAIN), size=size)]
        written = [TRAIN[rng.integers(len(TRAIN))] if rng.random() < self.confused else glide for glide in shown]
        clips = [draw(glide, self.side, self.frames, rng, rng.random() < self.flickering, self.from_middle) for glide in shown]
        return to_bytes(np.stack(clips)), [glide.caption for glide in written]
