"""Printed numbers of two digits: what a tiny image generator is taught to write, so that a text recogniser can judge it.

A caption is "the number 47". `Prints` are the pictures an uncurated collection would have: many captions give another number,
and many prints are smeared. The font is DejaVu Sans, which comes with matplotlib.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

FONT = "mpl-data/fonts/ttf/DejaVuSans-Bold.ttf"
PAPER, INK = (235, 235, 230), (25, 25, 40)
NUMBERS = tuple(range(10, 100))
HELD_OUT = tuple(number for number in NUMBERS if (number // 10 + number % 10) % 5 == 0)
"""Numbers that are held out; every digit occurs in them, in both places but for a leading 0."""
TRAIN = tuple(number for number in NUMBERS if number not in HELD_OUT)


def caption(number: int) -> str:
    return f"the number {number}"


def draw(number: int, height: int, width: int, shift: tuple[float, float] = (0.0, 0.0)) -> Image.Image:
    """The number in the middle, moved by `shift` pixels."""
    picture = Image.new("RGB", (4 * width, 4 * height), PAPER)
    middle = (2 * width + round(4 * shift[0]), 2 * height + round(4 * shift[1]))
    ImageDraw.Draw(picture).text(middle, str(number), INK, _font(round(3.6 * height)), anchor="mm")
    return picture.resize((width, height), Image.Resampling.BOX)


@lru_cache(maxsize=8)
def _font(size: int) -> ImageFont.FreeTypeFont:
    spec = find_spec("matplotlib")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("printing numbers needs the font in matplotlib: pip install 'mmrl[report]'")
    return ImageFont.truetype(str(Path(spec.submodule_search_locations[0]) / FONT), size)


@dataclass(frozen=True)
class Prints:
    """Pictures and captions to learn from, with the faults of an uncurated collection."""

    height: int = 16
    width: int = 32
    confused: float = 0.5
    """Share of captions that give another number."""
    smeared: float = 0.5
    """Share of pictures that are smeared."""

    @property
    def words(self) -> Sequence[str]:
        return ("the", "number")

    def batch(self, rng: np.random.Generator, size: int) -> tuple[NDArray[np.uint8], list[str]]:
        """`size` pictures (size, height, width, 3) and their captions."""
        shown = rng.choice(TRAIN, size)
        written = np.where(rng.random(size) < self.confused, rng.choice(TRAIN, size), shown)
        pictures = [self._print(number, rng) for number in shown.tolist()]
        return np.stack(pictures), [caption(number) for number in written.tolist()]

    def _print(self, number: int, rng: np.random.Generator) -> NDArray[np.uint8]:
        x, y = rng.uniform(-1, 1, 2).tolist()
        picture = draw(number, self.height, self.width, (self.width / 32 * x, self.height / 32 * y))
        return np.asarray(smear(picture, rng) if rng.random() < self.smeared else picture)


def smear(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A copy that is blurred, paler and has soft blots."""
    blurred = picture.filter(ImageFilter.GaussianBlur(picture.height / 16 * rng.uniform(0.5, 1.2)))
    coarse = Image.fromarray(rng.integers(0, 256, (2, 4), dtype=np.uint8))
    blots = coarse.resize(picture.size, Image.Resampling.BICUBIC)
    return Image.composite(Image.new("RGB", picture.size, INK), blurred, blots.point(lambda value: value * 0.5))
