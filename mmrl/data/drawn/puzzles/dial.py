"""Needles to turn to their marks; how far one turns for what is said is to be seen. Level: dials."""

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from mmrl.core.samples import Observation
from mmrl.data.drawn.puzzles.puzzle import COLOURS, GREY, Puzzle, Said, beside, paper, whole

SIDE, MIDDLE, RADIUS = 96, 48, 40
GEARS = 3
NEAR, FAR = 6, 40
"""Degrees from the mark within which a needle is right, and from which on it earns nothing."""
TEXT = (
    "Turn the red needle of each dial to its green mark. Say which and by how many degrees clockwise, as in: turn 1 40, or: turn "
    "1 -15. Its gear may turn it twice or three times as far. Say stop when all point at their marks."
)


@dataclass
class Dials(Puzzle):
    """Degrees of the needles and marks, clockwise from the top, and the number by which each gear multiplies."""

    needles: list[int]
    marks: list[int]
    gears: list[int]

    def look(self) -> Image.Image:
        return beside([draw(needle, mark) for needle, mark in zip(self.needles, self.marks, strict=True)], 0)

    def act(self, said: Said, /) -> Observation:
        if said.word == "turn":
            dial = whole(said.numbers[0], len(self.needles), "dials")
            self.needles[dial] = round(self.needles[dial] + self.gears[dial] * said.numbers[1]) % 360
            return Observation("", (self.look(),))
        off = [abs((needle - mark + 180) % 360 - 180) for needle, mark in zip(self.needles, self.marks, strict=True)]
        right = [min(1.0, max(0.0, (FAR - one) / (FAR - NEAR))) for one in off]
        return Observation(reward=sum(right) / len(right), done=True)


def draw(needle: int, mark: int) -> Image.Image:
    """One dial."""
    image, pen = paper(SIDE, SIDE)
    pen.ellipse((MIDDLE - RADIUS, MIDDLE - RADIUS, MIDDLE + RADIUS, MIDDLE + RADIUS), outline=GREY, width=2)
    (x, y), tip = end_of(mark, RADIUS), end_of(needle, RADIUS - 10)
    pen.ellipse((x - 5, y - 5, x + 5, y + 5), COLOURS["green"])
    pen.line((MIDDLE, MIDDLE, *tip), COLOURS["red"], 3)
    return image


def end_of(degrees: int, radius: int) -> tuple[float, float]:
    """Where a hand of this length ends, in pixels."""
    angle = math.radians(degrees)
    return MIDDLE + radius * math.sin(angle), MIDDLE - radius * math.cos(angle)


def make(rng: np.random.Generator, level: int) -> Dials:
    marks = [int(one) for one in rng.integers(360, size=level)]
    needles = [(mark + int(rng.integers(FAR, 360 - FAR))) % 360 for mark in marks]
    gears = [int(one) for one in rng.integers(1, GEARS + 1, size=level)]
    return Dials(TEXT, {"turn": 2, "stop": 0}, 3 * level + 1, needles, marks, gears)
