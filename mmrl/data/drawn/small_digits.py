"""Pictures with one printed digit, so small that it can be read only in a part that is cut from the file.

The digit has 13 to 15 of 256 pixels: a model that sees 64 x 64 sees it 3 to 4 pixels high, and the right sixteenth of the picture
shows it as high as half of what the model sees. A picture is a pure function of (seed, index, split).
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.drawn.scenes import Pixels, key_of

SIDE, PLACES = 256, 4
"""Width and height of a picture in pixels; the digit stands in one of PLACES x PLACES squares."""
HEIGHTS = 13, 15
"""Smallest and largest height of the digit, in pixels. At 26 to 30 the overview shows enough to read it."""
_JITTER = 2
"""Largest shift from the middle of its square, in pixels, in x and in y."""
_SHADE, _GRAIN = 0.08, 0.05
_SHEET = 1200
"""Side of the sheet of grain that backgrounds are cut from."""
_STREAM = 77
QUESTION = "Which digit is in the picture?"
GLYPHS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)
"""Seven rows of five dots, from 0 to 9."""
Place = tuple[int, int]
"""Column and row of a square."""


@dataclass(frozen=True)
class SmallDigit:
    """A picture, its digit, and where that is."""

    image: Image.Image
    digit: int
    place: Place
    corners: tuple[int, int, int, int]
    """The rectangle around the digit, in pixels."""


def draw_small_digit(seed: int, index: int, split: str = "train") -> SmallDigit:
    """Picture `index` of the endless series `seed`; ValueError for an unknown split."""
    rng = np.random.default_rng([*key_of(seed, index, split), _STREAM])
    top, left = rng.integers(_SHEET - SIDE + 1, size=2)
    canvas = _SHADE + _GRAIN * _sheet()[top : top + SIDE, left : left + SIDE]
    digit = int(rng.integers(len(GLYPHS)))
    ink, square = _ink(rng, digit), SIDE // PLACES
    column, row = (int(i) for i in rng.integers(PLACES, size=2))
    height, width = ink.shape
    shifts = rng.integers(-_JITTER, _JITTER + 1, size=2).tolist()
    x, y = (i * square + (square - n) // 2 + shift for i, n, shift in zip((column, row), (width, height), shifts, strict=True))
    area = canvas[y : y + height, x : x + width]
    area += ink[..., None] * (rng.uniform(0.6, 1.0, 3).astype(np.float32) - area)
    image = Image.fromarray((canvas.clip(0, 1) * 255).astype(np.uint8))
    return SmallDigit(image, digit, (column, row), (x, y, x + width, y + height))


def box_of(place: Place) -> tuple[int, int, int, int]:
    """The box that shows the digit of a square as large as it is right: half as wide as the square, in thousandths."""
    x, y = (1000 * i // PLACES + 62 for i in place)
    return x, y, x + 125, y + 125


def _ink(rng: np.random.Generator, digit: int) -> Pixels:
    """A digit's opacities, (height, width)."""
    dots = np.array([[float(dot) for dot in row] for row in GLYPHS[digit].split()], np.float32)
    height = int(rng.integers(HEIGHTS[0], HEIGHTS[1] + 1))
    width = round(height * dots.shape[1] / dots.shape[0] * rng.uniform(0.85, 1.15))
    return np.asarray(Image.fromarray(dots).resize((width, height), Image.Resampling.BICUBIC)).clip(0, 1)


@cache
def _sheet() -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((_SHEET, _SHEET, 3), np.float32)
