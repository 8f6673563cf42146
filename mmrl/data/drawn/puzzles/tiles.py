"""Small patterns on a grid, to be looked at closely: the odd one out, or those that differ between two sheets."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.core.samples import Observation
from mmrl.data.drawn.puzzles.puzzle import INK, Puzzle, Said, beside, paper, whole

DOTS, DOT, GAP, LARGER = 4, 3, 6, 6
"""Dots along a side of a pattern, pixels of a dot and between patterns, and how much larger a look shows one."""
Sheet = NDArray[np.bool_]
"""Patterns by row and column: (size, size, DOTS, DOTS)."""


@dataclass
class Tiles(Puzzle):
    """One sheet or two, and the places of the patterns that are looked for."""

    sheets: tuple[Sheet, ...]
    odd: frozenset[tuple[int, int]]
    found: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    def look(self) -> Image.Image:
        return beside([draw(sheet, DOT) for sheet in self.sheets], 20)

    def act(self, said: Said, /) -> Observation:
        row, column = (whole(one, len(self.sheets[0]), "rows and columns") for one in said.numbers)
        if said.word == "look":
            parts = [draw(sheet[row : row + 1, column : column + 1], DOT * LARGER) for sheet in self.sheets]
            return Observation("", (beside(parts, 20),))
        place = (row, column)
        right = place in self.odd and place not in self.found
        self.found.add(place)
        return Observation(reward=right / len(self.odd), done=not right or self.odd <= self.found, text="Right." if right else "")


def draw(sheet: Sheet, dot: int) -> Image.Image:
    """The patterns of a sheet, with dots of so much pixels."""
    step = DOTS * dot + GAP
    image, pen = paper(len(sheet[0]) * step + GAP, len(sheet) * step + GAP)
    for row, column, down, across in np.argwhere(sheet).tolist():
        x, y = GAP + column * step + across * dot, GAP + row * step + down * dot
        pen.rectangle((x, y, x + dot - 1, y + dot - 1), INK)
    return image


def make_odd(rng: np.random.Generator, level: int) -> Tiles:
    """One pattern again and again, and once with a dot that is another. Level: rows and columns, less one."""
    size = level + 1
    sheet = np.tile(rng.random((DOTS, DOTS)) < 0.5, (size, size, 1, 1))
    row, column, down, across = (int(i) for i in rng.integers([size, size, DOTS, DOTS]))
    sheet[row, column, down, across] ^= True
    text = "One pattern is not like the others. Look closely, as in: look 2 1 (row 2, column 1). Then say where it is: odd 1 2."
    return Tiles(text, {"look": 2, "odd": 2}, size**2 + 1, (sheet,), frozenset({(row, column)}))


def make_difference(rng: np.random.Generator, level: int) -> Tiles:
    """Two sheets of patterns that are alike but for some. Level: how many; there are 16 patterns."""
    sheet = rng.random((4, 4, DOTS, DOTS)) < 0.5
    other, places = sheet.copy(), [divmod(int(i), 4) for i in rng.choice(16, level, replace=False)]
    for row, column in places:
        down, across = rng.integers(DOTS, size=2)
        other[row, column, down, across] ^= True
    text = (
        f"The two sheets differ at {level} place{'s' if level > 1 else ''}. Look at both closely, as in: look 2 1 (row 2, "
        "column 1). Name each place, as in: differ 1 2. A wrong one ends the search."
    )
    return Tiles(text, {"look": 2, "differ": 2}, 16 + level, (sheet, other), frozenset(places))
