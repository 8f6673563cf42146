"""Screens with numbered buttons, which stand elsewhere after every press.

A screen is a pure function of (seed, index, split, buttons, press).
"""

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from mmrl.data.drawn.puzzles.puzzle import print_digit
from mmrl.data.drawn.scenes import key_of

WIDTH, HEIGHT = 256, 192
_COLUMNS, _ROWS = 3, 4
_BUTTON = 64, 32
_DOT = 3
"""Pixels of a dot of a digit."""
_STREAM = 93
MOST_BUTTONS = 10


@dataclass(frozen=True)
class DrawnScreen:
    """A picture, and the rectangle of every button by its number: x1, y1, x2, y2 in pixels."""

    image: Image.Image
    buttons: dict[int, tuple[int, int, int, int]]

    def button_at(self, x: float | int, y: float | int) -> int | None:
        """The number of the button at a point."""
        return next((n for n, (x1, y1, x2, y2) in self.buttons.items() if x1 <= x < x2 and y1 <= y < y2), None)


def order_of(seed: int, index: int, split: str, buttons: int, presses: int) -> list[int]:
    """The numbers to press, in their order; ValueError for an unknown split."""
    numbers = numbers_of(seed, index, split, buttons)
    return [int(n) for n in rng_of(seed, index, split, 0).choice(numbers, presses, replace=False)]


def draw_screen(seed: int, index: int, split: str, buttons: int, press: int) -> DrawnScreen:
    """The screen after so much was pressed."""
    rng = rng_of(seed, index, split, 2 + press)
    cells = rng.choice(_COLUMNS * _ROWS, buttons, replace=False)
    image = Image.new("RGB", (WIDTH, HEIGHT), (225, 228, 232))
    pen, places = ImageDraw.Draw(image), dict[int, tuple[int, int, int, int]]()
    for number, cell in zip(numbers_of(seed, index, split, buttons), cells, strict=True):
        free = WIDTH // _COLUMNS - _BUTTON[0], HEIGHT // _ROWS - _BUTTON[1]
        x = int(cell) % _COLUMNS * (WIDTH // _COLUMNS) + int(rng.integers(free[0]))
        y = int(cell) // _COLUMNS * (HEIGHT // _ROWS) + int(rng.integers(free[1]))
        places[number] = (x, y, x + _BUTTON[0], y + _BUTTON[1])
        pen.rectangle((x, y, x + _BUTTON[0] - 1, y + _BUTTON[1] - 1), (70, 110, 180))
        print_digit(pen, number, x + 24, y + 5, _DOT, (255, 255, 255))
    return DrawnScreen(image, places)


def numbers_of(seed: int, index: int, split: str, buttons: int) -> list[int]:
    """The numbers on the buttons of a screen."""
    return [int(n) for n in rng_of(seed, index, split, 1).choice(MOST_BUTTONS, buttons, replace=False)]


def rng_of(seed: int, index: int, split: str, stream: int) -> np.random.Generator:
    return np.random.default_rng([*key_of(seed, index, split), stream, _STREAM])
