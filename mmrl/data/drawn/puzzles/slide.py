"""Eight tiles to slide into their order. Level: slides from the order, less one."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from mmrl.answers.calls import CallError
from mmrl.core.samples import Observation
from mmrl.data.drawn.puzzles.puzzle import COLOURS, PAPER, Puzzle, Said, paper, print_digit, whole

SIZE, TILE = 3, 48
ORDER = (1, 2, 3, 4, 5, 6, 7, 8, 0)
"""Tiles row by row; 0 is the gap."""
TEXT = (
    "Bring the tiles into their order, 1 to 8 row by row, with the gap at the end. Say which tile next to the gap slides into "
    "it, as in: slide 5."
)


@dataclass
class Slide(Puzzle):
    """The tiles as they lie, and how far they were from their places in all."""

    tiles: tuple[int, ...]
    far: int

    def look(self) -> Image.Image:
        image, pen = paper(SIZE * TILE, SIZE * TILE)
        for place, tile in enumerate(self.tiles):
            x, y = place % SIZE * TILE, place // SIZE * TILE
            if tile:
                pen.rectangle((x + 1, y + 1, x + TILE - 2, y + TILE - 2), COLOURS["blue"])
                print_digit(pen, tile, x + 14, y + 10, 4, PAPER)
        return image

    def act(self, said: Said, /) -> Observation:
        tile = whole(said.numbers[0], len(ORDER) - 1, "tiles") + 1
        if tile not in (self.tiles[place] for place in neighbours(self.tiles.index(0))):
            raise CallError("that tile is not next to the gap")
        before, self.tiles = self.share, after(self.tiles, tile)
        return Observation("", (self.look(),), reward=self.share - before, done=self.tiles == ORDER)

    @property
    def share(self) -> float:
        """How much of the way is done."""
        return max(0.0, 1 - distance(self.tiles) / self.far)


def neighbours(place: int) -> list[int]:
    """The places above, below and beside one."""
    x, y = place % SIZE, place // SIZE
    return [b * SIZE + a for a, b in ((x, y - 1), (x, y + 1), (x - 1, y), (x + 1, y)) if 0 <= a < SIZE and 0 <= b < SIZE]


def after(tiles: tuple[int, ...], tile: int) -> tuple[int, ...]:
    """The tiles with this one where the gap was."""
    return tuple({0: tile, tile: 0}.get(one, one) for one in tiles)


def distance(tiles: tuple[int, ...]) -> int:
    """Slides that the tiles would need if none were in the way of another."""
    places = [(place, ORDER.index(tile)) for place, tile in enumerate(tiles) if tile]
    return sum(abs(here % SIZE - there % SIZE) + abs(here // SIZE - there // SIZE) for here, there in places)


def make(rng: np.random.Generator, level: int) -> Slide:
    tiles, last = ORDER, 0
    for _ in range(level + 1):
        last = int(rng.choice([tiles[place] for place in neighbours(tiles.index(0)) if tiles[place] != last]))
        tiles = after(tiles, last)
    return Slide(TEXT, {"slide": 1}, 2 * level + 3, tiles, distance(tiles))
