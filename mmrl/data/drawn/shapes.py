"""Coloured shapes on light paper: what a tiny image generator is taught to draw, and the masks its pictures are judged by.

A caption is "a red circle on the left". `Sketches` are the pictures an uncurated collection would have: many captions belong to
another picture, and many pictures are stained.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.core.types import Prompt

Picture = NDArray[np.float32]
"""(side, side, 3) in [0, 1]."""
Mask = NDArray[np.float32]
"""(side, side): how much of a pixel is covered, in [0, 1]."""
PAPER = (0.92, 0.92, 0.90)
COLOURS = {"red": (0.85, 0.15, 0.15), "green": (0.15, 0.65, 0.25), "blue": (0.15, 0.30, 0.85), "yellow": (0.95, 0.80, 0.10)}
SHAPES = ("circle", "square", "triangle")
SIDES = {"left": (-1, 0), "right": (1, 0), "top": (0, -1), "bottom": (0, 1)}
"""Name -> direction from the middle, y downwards."""
OFFSET = 0.23
"""From the middle of the picture to the middle of a shape, as a share of the side."""
SHIFT = 0.03
"""The farthest that a shape is off its place, as a share of the picture's side."""
Jitter = tuple[float, float, float]
"""How far a shape's place (x, y) and size are off the usual ones, each in [-1, 1]."""
GROUNDS = {"light": PAPER, "dark": (0.10, 0.10, 0.12)}
_FINE = 4
"""Points per pixel and axis."""

Words = TypeVar("Words", bound=tuple[str, ...])


def every_fourth(all_words: Iterable[Words], *known: Iterable[str]) -> tuple[Words, ...]:
    """A quarter of all combinations of known words, in which every word occurs equally often."""
    places = [{word: i for i, word in enumerate(words)} for words in known]
    return tuple(words for words in all_words if sum(map(dict.__getitem__, places, words)) % 4 == 0)


class Wish(NamedTuple):
    """A coloured shape at a place, as a caption asks for it."""

    colour: str
    shape: str
    side: str

    @property
    def caption(self) -> str:
        return f"a {self.colour} {self.shape} on the {self.side}"


WISHES = tuple(Wish(*words) for words in product(COLOURS, SHAPES, SIDES))
HELD_OUT = every_fourth(WISHES, COLOURS, SHAPES, SIDES)
"""Combinations that are held out; every colour, shape and side occurs in them equally often."""
TRAIN = tuple(wish for wish in WISHES if wish not in HELD_OUT)


@lru_cache(maxsize=256)
def _points(side: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    fine = (np.arange(side * _FINE) + 0.5) / _FINE
    x, y = np.meshgrid(fine, fine)
    return x, y


def ideal_mask(shape: str, x: float, y: float, area: float, side: int) -> Mask:
    """A shape of `area` square pixels with its centroid at (x, y): circles, upright squares, triangles with a side below."""
    px, py = _points(side)
    dx, dy = px - x, py - y
    if shape == "circle":
        inside = dx**2 + dy**2 <= area / np.pi
    elif shape == "square":
        inside = np.maximum(abs(dx), abs(dy)) <= np.sqrt(area) / 2
    else:
        height = np.sqrt(area * np.sqrt(3))
        inside = (dy <= height / 3) & (abs(dx) * np.sqrt(3) <= dy + 2 * height / 3)
    return inside.reshape(side, _FINE, side, _FINE).mean((1, 3), dtype=np.float32)


def ink_beside(shape: str, ink: NDArray[np.bool_]) -> tuple[tuple[float, float], np.float32, NDArray[np.bool_]]:
    """The middle (x, y) of ink (side, side), its IoU with a shape of its area there, and the pixels outside of 1.5 times that."""
    rows, columns = np.nonzero(ink)
    x, y, area = float(columns.mean()) + 0.5, float(rows.mean()) + 0.5, float(ink.sum())
    ideal = ideal_mask(shape, x, y, area, len(ink))
    overlap = np.minimum(ink, ideal).sum() / np.maximum(ink, ideal).sum()
    return (x, y), overlap, ideal_mask(shape, x, y, 1.5 * area, len(ink)) == 0


def place(side: str, size: int) -> tuple[float, float]:
    """The place (x, y) where the middle of a shape belongs in a picture of size x size pixels."""
    x, y = SIDES[side]
    return size * (0.5 + OFFSET * x), size * (0.5 + OFFSET * y)


def middle(side: str, jitter: Jitter, size: int) -> tuple[float, float]:
    """The middle (x, y) of a shape on a side, in pixels."""
    x, y = place(side, size)
    return x + size * SHIFT * jitter[0], y + size * SHIFT * jitter[1]


def draw_on(wish: Wish, ground: str, jitter: Jitter, size: int) -> Picture:
    """The picture (size, size, 3) of a wished shape on one of GROUNDS."""
    x, y = middle(wish.side, jitter, size)
    mask = ideal_mask(wish.shape, x, y, size**2 * (0.135 + 0.025 * jitter[2]), size)[..., None]
    return (mask * np.array(COLOURS[wish.colour]) + (1 - mask) * np.array(GROUNDS[ground])).astype(np.float32)


def draw(wish: Wish, side: int, rng: np.random.Generator | None = None) -> Picture:
    """A picture of the wished shape; with a generator, place and size vary a little."""
    return draw_on(wish, "light", (0.0, 0.0, 0.0) if rng is None else jitter_of(rng), side)


def jitter_of(rng: np.random.Generator) -> Jitter:
    x, y, size = rng.uniform(-1, 1, 3).tolist()
    return x, y, size


def to_bytes(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Pixels in [0, 1] as whole numbers from 0 to 255."""
    return (pixels.clip(0, 1) * 255).round().astype(np.uint8)


@dataclass(frozen=True)
class Collection:
    """Square pictures to learn from, with the faults of an uncurated collection."""

    side: int = 32
    confused: float = 0.5
    """Share of pictures whose words belong to another one."""
    stained: float = 0.5
    """Share of pictures with stains."""

    @property
    def height(self) -> int:
        return self.side

    @property
    def width(self) -> int:
        return self.side


@dataclass(frozen=True)
class Sketches(Collection):
    """Pictures and captions."""

    @property
    def words(self) -> Sequence[str]:
        return (*COLOURS, *SHAPES, *SIDES, "a", "on", "the")

    def batch(self, rng: np.random.Generator, size: int) -> tuple[NDArray[np.uint8], list[str]]:
        """`size` pictures (size, height, width, 3) and their captions."""
        shown = [TRAIN[i] for i in rng.integers(len(TRAIN), size=size)]
        written = [TRAIN[rng.integers(len(TRAIN))] if rng.random() < self.confused else wish for wish in shown]
        pictures = [draw(wish, self.side, rng) for wish in shown]
        pictures = [stain(picture, rng) if rng.random() < self.stained else picture for picture in pictures]
        return to_bytes(np.stack(pictures)), [wish.caption for wish in written]


def stain(picture: Picture, rng: np.random.Generator) -> Picture:
    """A copy with soft blots of one tint all over it."""
    side = len(picture)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4), dtype=np.uint8))
    blots = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), np.float32)[..., None] / 255
    return (picture * (1 - blots * rng.uniform(0.1, 0.3, 3))).astype(np.float32)


@runtime_checkable
class Caption(Protocol):
    """A named tuple of words, such as `Wish("red", "circle", "left")`, and what it asks for."""

    @property
    def caption(self) -> str: ...
    def _asdict(self) -> dict[str, Any]: ...


def captions_of(splits: Mapping[str, Sequence[Caption]], split: str, size: int | None, seed: int) -> list[Prompt]:
    """The first `size` captions of a split as prompts, in the seed's order, with their words as columns.

    Raises ValueError for an unknown split, or where it has fewer captions.
    """
    if split not in splits:
        raise ValueError(f"data.split is {split!r}: choose one of {', '.join(splits)}")
    found = splits[split]
    if size is not None and not 0 <= size <= len(found):
        raise ValueError(f"data.size is {size}, but the split {split!r} has {len(found)} captions: leave it out to take all")
    order = np.random.default_rng(seed).permutation(len(found))[:size].tolist()
    words = [(found[i].caption, found[i]._asdict()) for i in order]
    return [Prompt("-".join(columns.values()), caption, columns=columns) for caption, columns in words]
