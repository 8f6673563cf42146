"""Generated pictures with a few dots that are too close together to be counted at first sight. No download.

256 x 256 pixels with 1 to 5 dots: for models that look at a part again ([environment] use = "zoom"). The dots of a picture have
as much light in all, however many they are, so that an overview of 64 x 64 tells nothing of their number. Column `box` is the
part with the dots, `difficulty` their number. Always the same for the same seed; held-out pictures are of a series of their own.
Licence: own drawing, Apache-2.0.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from mmrl import Box, Prompt
from mmrl.data.drawn.scenes import key_of
from mmrl.data.sources import lazily
from mmrl.runtime.ranges import Count, Seed

__all__ = ["load"]
SIDE, PLACES = 256, 4
"""Width and height of a picture in pixels; the dots lie in one of PLACES x PLACES squares."""
MOST = 5
"""Dots of a picture, from 1 on."""
QUESTION = "How many dots are in the picture?"
DOT, APART, LATTICE = 3, 6, 3
"""Pixels of a dot and from one to the next, and places for dots along a side."""
SHADE, GRAIN = 0.1, 0.02
LIGHT = 0.8
"""Brightness that all dots have together, above the background."""
STREAM = 95


def _draw(seed: int, index: int, split: str) -> tuple[Image.Image, int, tuple[int, int, int, int]]:
    """Picture `index` of the endless series `seed`, the number of its dots, and the rectangle around them in pixels."""
    rng = np.random.default_rng([*key_of(seed, index, split), STREAM])
    canvas = SHADE + GRAIN * rng.standard_normal((SIDE, SIDE, 3), np.float32)
    count, square, extent = int(rng.integers(1, MOST + 1)), SIDE // PLACES, APART * LATTICE
    column, row = (int(i) for i in rng.integers(PLACES, size=2))
    left, top = (i * square + int(rng.integers(square - extent)) for i in (column, row))
    for place in rng.choice(LATTICE**2, count, replace=False):
        x, y = left + int(place) % LATTICE * APART, top + int(place) // LATTICE * APART
        canvas[y : y + DOT, x : x + DOT] += LIGHT / count
    image = Image.fromarray((canvas.clip(0, 1) * 255).astype(np.uint8))
    return image, count, (left, top, left + extent, top + extent)


def load(split: str = "train", size: Count = 4096, seed: Seed = 0) -> Sequence[Prompt]:
    """Prompts whose answer is a number.

    Args:
        split: train or held_out.
        size: the number of prompts.
        seed: another seed gives other pictures of the same kind.

    Raises:
        ValueError: no such split.
    """

    def prompt(index: int) -> Prompt:
        image, count, corners = _draw(seed, index, split)
        columns = {"box": Box(*corners, "pixel", "dots"), "difficulty": count}
        return Prompt(f"{split}-{seed}-{index}", QUESTION, (image,), count, columns)

    return lazily(size, prompt)
