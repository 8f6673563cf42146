"""A chart without numbers, to be read with a ruler that is laid across it. Level: bars that are asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from mmrl.core.samples import Observation
from mmrl.data.drawn.puzzles.puzzle import COLOURS, INK, Puzzle, Said, paper

FLOOR, BAR, GAP = 150, 16, 8
"""Pixels from the top to the foot of the bars, of a bar's width and between two."""
NEAR, FAR = 3.0, 15.0
"""An answer that is off by less than the first is right; by more than the second it earns nothing."""


@dataclass
class Ruler(Puzzle):
    """The bars from left to right by their colours, in units of the chart, those asked for, and the pixels of a unit."""

    bars: Mapping[str, int]
    asked: Sequence[str]
    unit: float
    given: int = 0
    """Answers so far."""

    def look(self) -> Image.Image:
        return self.chart(None)

    def act(self, said: Said, /) -> Observation:
        number = said.numbers[0]
        if said.word == "ruler":
            return Observation("", (self.chart(max(0.0, min(100.0, number))),))
        off, self.given = abs(number - self.bars[self.asked[self.given]]), self.given + 1
        reward = min(1.0, max(0.0, (FAR - off) / (FAR - NEAR))) / len(self.asked)
        return Observation("Next.", reward=reward, done=self.given == len(self.asked))

    def chart(self, ruler: float | None) -> Image.Image:
        """The bars, with the ruler at this height."""
        image, pen = paper(len(self.bars) * (BAR + GAP) + GAP, FLOOR + 8)
        for number, (name, height) in enumerate(self.bars.items()):
            x = GAP + number * (BAR + GAP)
            pen.rectangle((x, FLOOR - round(height * self.unit), x + BAR - 1, FLOOR), COLOURS[name])
        if ruler is not None:
            y = FLOOR - round(ruler * self.unit)
            pen.line((0, y, image.width, y), INK, 1)
        return image


def make(rng: np.random.Generator, level: int) -> Ruler:
    names = [str(one) for one in rng.permutation([one for one in COLOURS if one != "black"])]
    bars = {name: int(rng.integers(8, 99)) for name in names}
    asked = [str(one) for one in rng.choice(names, level, replace=False)]
    text = (
        f"How high are these bars: {', '.join(asked)}? Heights are from 0 to 100. Lay a ruler across the chart, as in: "
        "ruler 40. Give one height at a time, in this order, as in: answer 55."
    )
    return Ruler(text, {"ruler": 1, "answer": 1}, 3 * level + 3, bars, asked, float(rng.uniform(1.0, 1.4)))
