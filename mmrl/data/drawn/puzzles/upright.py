"""A picture cut into nine pieces, some of which are turned. Level: how many."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from mmrl.answers.calls import CallError
from mmrl.core.samples import Observation
from mmrl.data.drawn.puzzles.puzzle import COLOURS, Puzzle, Said, paper, whole

SIZE, PIECE = 3, 48
TEXT = (
    "The sky is bright and the ground is dark, and some of the nine pieces of the picture are turned. They are numbered row by "
    "row. Turn each upright, by 90, 180 or 270 degrees clockwise, as in: turn 5 90."
)


@dataclass
class Upright(Puzzle):
    """The pieces row by row, upright, and the quarters by which each is turned clockwise."""

    pieces: Sequence[Image.Image]
    quarters: list[int]
    level: int

    def look(self) -> Image.Image:
        image, _ = paper(SIZE * PIECE + 4, SIZE * PIECE + 4)
        for place, (piece, quarters) in enumerate(zip(self.pieces, self.quarters, strict=True)):
            corner = (place % SIZE * (PIECE + 2), place // SIZE * (PIECE + 2))
            image.paste(piece.rotate(-90 * quarters), corner)
        return image

    def act(self, said: Said, /) -> Observation:
        place, degrees = whole(said.numbers[0], SIZE**2, "pieces"), said.numbers[1]
        if degrees not in (90, 180, 270):
            raise CallError("pieces are turned by 90, 180 or 270 degrees")
        before, self.quarters[place] = self.share, (self.quarters[place] + int(degrees) // 90) % 4
        return Observation("", (self.look(),), reward=self.share - before, done=not any(self.quarters))

    @property
    def share(self) -> float:
        """How much is done: 1 where no piece is turned, 0 where as many are as at first, or more."""
        return max(0.0, 1 - sum(map(bool, self.quarters)) / self.level)


def make(rng: np.random.Generator, level: int) -> Upright:
    side = SIZE * PIECE
    light = np.linspace(235, 40, side)[:, None, None] * rng.uniform(0.75, 1, 3)
    image = Image.fromarray(np.broadcast_to(light, (side, side, 3)).astype(np.uint8))
    spot = Image.new("RGB", (6, 6), COLOURS["orange"])
    for x, y in rng.integers(side - 6, size=(12, 2)).tolist():
        image.paste(spot, (x, y))
    boxes = [(x, y, x + PIECE, y + PIECE) for y in range(0, side, PIECE) for x in range(0, side, PIECE)]
    quarters = [0] * SIZE**2
    for place in rng.choice(SIZE**2, level, replace=False):
        quarters[int(place)] = int(rng.integers(1, 4))
    return Upright(TEXT, {"turn": 2}, 2 * level + 1, [image.crop(box) for box in boxes], quarters, level)
