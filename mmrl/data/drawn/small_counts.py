"""Pictures with a few dots close together, which can be counted only in a part that is cut from the file.

The dots of a picture have as much light in all, however many they are, so that an overview of 64 x 64 tells nothing of their
number. A picture is a pure function of (seed, index, split).
"""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from mmrl.data.drawn.scenes import key_of

SIDE, PLACES = 256, 4
"""Width and height of a picture in pixels; the dots lie in one of PLACES x PLACES squares."""
MOST = 5
"""Dots of a picture, from 1 on."""
QUESTION = "How many dots are in the picture?"
_DOT, _APART, _LATTICE = 3, 6, 3
"""Pixels of a dot and from one to the next, and places for dots along a side."""
_SHADE, _GRAIN = 0.1, 0.02
_LIGHT = 0.8
"""Brightness that all dots have together, above the background."""
_STREAM = 95


@dataclass(frozen=True)
class SmallCount:
    """A picture, the number of its dots, and the rectangle around them in pixels."""

    image: Image.Image
    count: int
    corners: tuple[int, int, int, int]


def draw_small_count(seed: int, index: int, split: str = "train") -> SmallCount:
    """Picture `index` of the endless series `seed`; ValueError for an unknown split."""
    rng = np.random.default_rng([*key_of(seed, index, split), _STREAM])
    canvas = _SHADE + _GRAIN * rng.standard_normal((SIDE, SIDE, 3), np.float32)
    count, square, extent = int(rng.integers(1, MOST + 1)), SIDE // PLACES, _APART * _LATTICE
    column, row = (int(i) for i in rng.integers(PLACES, size=2))
    left, top = (i * square + int(rng.integers(square - extent)) for i in (column, row))
    for place in rng.choice(_LATTICE**2, count, replace=False):
        x, y = left + int(place) % _LATTICE * _APART, top + int(place) // _LATTICE * _APART
        canvas[y : y + _DOT, x : x + _DOT] += _LIGHT / count
    image = Image.fromarray((canvas.clip(0, 1) * 255).astype(np.uint8))
    return SmallCount(image, count, (left, top, left + extent, top + extent))
