"""Scenes with known boxes: real handwritten digits (scikit-learn's `load_digits`, 8 x 8 pixels) on a drawn background.

A scene is a pure function of (seed, index, split, style). Every fifth digit of the collection appears in held-out scenes only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SPLITS = ("train", "held_out")
Corners = tuple[float, float, float, float]
"""(x1, y1, x2, y2) in pixels of the scene."""
Pixels = NDArray[np.float32]
_HELD_OUT_EVERY = 5
_INK = 0.25
"""Opacity from which a pixel is part of a digit; digits are cropped to the smallest rectangle around such pixels."""
_LAYOUTS = 500
"""How many random layouts are tried before a scene is refused."""


@dataclass(frozen=True)
class SceneStyle:
    """The look of scenes. By default the 7 is asked for, and one digit of another class is next to it."""

    side: int = 64
    """Width and height of a scene in pixels."""
    glyph: tuple[int, int] = (28, 32)
    """Smallest and largest side of a digit in pixels, its empty margin included."""
    asked: tuple[int, ...] = (7,)
    """Digits that are asked for. A model of 1 M parameters learns one in minutes; comparing question and picture takes longer."""
    num_distractors: int = 1
    """Digits of other classes in the scene."""
    grid: int = 32
    """Digits are at multiples of this number of pixels, plus the jitter; 1 = anywhere: far slower to learn."""
    jitter: int = 3
    """Largest shift off the grid, in pixels, in x and in y."""
    background: Literal["noise", "photo"] = "noise"
    """noise: dark and grainy. photo: soft shades of colour, blurred shapes and grain."""

    def __post_init__(self) -> None:
        least, largest = self.glyph
        checks = {
            "glyph": (8 <= least <= largest <= self.side, f"(smallest, largest) in 8..{self.side}"),
            "asked": (bool(self.asked) and set(self.asked) <= set(range(10)), "one or more of 0..9"),
            "num_distractors": (0 <= self.num_distractors <= 9, "in 0..9"),
            "grid": (self.grid >= 1, "1 or more"),
            "jitter": (self.jitter >= 0, "0 or more"),
        }
        for name, (fine, wanted) in checks.items():
            if not fine:
                raise ValueError(f"scene style: {name} is {getattr(self, name)!r}, it must be {wanted}")


@dataclass(frozen=True)
class PlacedDigit:
    """One digit of a scene and the smallest rectangle around its ink."""

    digit: int
    corners: Corners


@dataclass(frozen=True)
class Scene:
    """A picture, the digit to find, and the other digits."""

    image: Image.Image
    asked: PlacedDigit
    distractors: tuple[PlacedDigit, ...]

    @property
    def question(self) -> str:
        return question(self.asked.digit)


def question(digit: int) -> str:
    return f"Where is the {digit}?"


def key_of(seed: int, index: int, split: str) -> tuple[int, int, int]:
    """The numbers that a thing of a drawn series is made from; ValueError for an unknown split."""
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is unknown: choose one of {', '.join(SPLITS)}")
    return seed, index, SPLITS.index(split)


def draw_scene(seed: int, index: int, split: str = "train", style: SceneStyle = SceneStyle()) -> Scene:
    """Scene `index` of the endless series `seed`: no class appears twice in it, and no two digits' rectangles overlap.

    Raises ValueError for an unknown split or digits that do not fit, and ModuleNotFoundError without scikit-learn.
    """
    rng = np.random.default_rng(key_of(seed, index, split))
    canvas = BACKGROUNDS[style.background](rng, style.side)
    asked = int(rng.choice(style.asked))
    others = [digit for digit in range(10) if digit != asked]
    digits = [asked, *map(int, rng.choice(others, style.num_distractors, replace=False))]
    inks = [handwriting(rng, digit, split, style.glyph) for digit in digits]
    places = _layout(rng, [offset + ink.shape[::-1] for offset, ink in inks], style)
    placed: list[PlacedDigit] = []
    for digit, (x, y), (_, ink) in zip(digits, places, inks, strict=True):
        height, width = ink.shape
        colour = rng.uniform(0.5, 1.0, 3)
        area = canvas[y : y + height, x : x + width]
        area += ink[..., None] * (colour - area)
        placed.append(PlacedDigit(digit, (float(x), float(y), float(x + width), float(y + height))))
    image = Image.fromarray((canvas.clip(0, 1) * 255).astype(np.uint8))
    return Scene(image, placed[0], tuple(placed[1:]))


def handwriting(rng: np.random.Generator, digit: int, split: str, sides: tuple[int, int]) -> tuple[tuple[int, int], Pixels]:
    """A handwritten digit, scaled to one of `sides` with its margin and cropped to its ink: left and upper margin, opacities."""
    images, _ = _collection()
    glyph = images[rng.choice(glyph_rows(split)[digit])]
    side = int(rng.integers(sides[0], sides[1] + 1))
    large = np.asarray(Image.fromarray(glyph).resize((side, side), Image.Resampling.BICUBIC)).clip(0, 1)
    ys, xs = np.nonzero(large > _INK)
    return (int(xs.min()), int(ys.min())), large[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]


@cache
def glyph_rows(split: str) -> tuple[NDArray[np.intp], ...]:
    """For every digit 0..9 the rows of scikit-learn's collection that scenes of this split may show."""
    _, labels = _collection()
    rows = np.arange(len(labels))
    mine = (rows % _HELD_OUT_EVERY == 0) == (split == "held_out")
    return tuple(rows[mine & (labels == digit)] for digit in range(10))


@cache
def _collection() -> tuple[Pixels, NDArray[np.int64]]:
    """Opacities in [0, 1], (1797, 8, 8), and which digit each shows."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('handwritten digits come from scikit-learn: pip install "mmrl[demo]"') from error
    digits = cast(Mapping[str, NDArray[np.float64]], load_digits())
    return digits["images"].astype(np.float32) / np.float32(16), digits["target"].astype(np.int64)


def _layout(rng: np.random.Generator, shapes: list[tuple[int, ...]], style: SceneStyle) -> list[tuple[int, int]]:
    """Upper left corners of rectangles that do not overlap; a shape is (left margin, upper margin, width, height)."""
    margins, lengths = (np.array(shapes).reshape(-1, 2, 2)[:, i] for i in (0, 1))
    cells = (style.side - style.glyph[1]) // style.grid + 1
    for _ in range(_LAYOUTS):
        wanted = style.grid * rng.integers(cells, size=margins.shape)
        wanted += rng.integers(-style.jitter, style.jitter + 1, size=margins.shape) + margins
        places: list[tuple[int, int]] = [(x, y) for x, y in wanted.clip(0, style.side - lengths).tolist()]
        ends = [(x + width, y + height) for (x, y), (width, height) in zip(places, lengths.tolist(), strict=True)]
        if not any(_overlap(places[i], ends[i], places[j], ends[j]) for i in range(len(shapes)) for j in range(i)):
            return places
    raise ValueError(
        f"{len(shapes)} digits of {style.glyph[0]} to {style.glyph[1]} pixels found no place on a scene of {style.side}: "
        "lower num_distractors or glyph, or raise side"
    )


def _overlap(a: tuple[int, int], a_end: tuple[int, int], b: tuple[int, int], b_end: tuple[int, int]) -> bool:
    return a[0] < b_end[0] and b[0] < a_end[0] and a[1] < b_end[1] and b[1] < a_end[1]


def _noise(rng: np.random.Generator, side: int) -> Pixels:
    return (rng.uniform(0, 0.15, 3) + 0.05 * rng.standard_normal((side, side, 3), np.float32)).astype(np.float32)


def _photo(rng: np.random.Generator, side: int) -> Pixels:
    """A slope of colour, four by four soft blobs, and grain."""
    y, x = np.mgrid[0:side, 0:side] / side
    slope = rng.uniform(0, 0.2, 3) + x[..., None] * rng.uniform(0, 0.15, 3) + y[..., None] * rng.uniform(0, 0.15, 3)
    blobs = Image.fromarray(rng.integers(0, 46, (4, 4, 3), dtype=np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    return (slope + np.asarray(blobs) / 255 + 0.03 * rng.standard_normal((side, side, 3), np.float32)).astype(np.float32)


BACKGROUNDS = {"noise": _noise, "photo": _photo}
"""Kind -> what makes a canvas of side x side pixels in colour, its values about 0 to 1."""
