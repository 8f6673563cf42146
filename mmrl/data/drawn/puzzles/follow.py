"""A disc to follow while discs of its kind change places. Level: places that are changed, less one, and discs, less two."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from mmrl.answers.calls import CallError
from mmrl.core.samples import Observation
from mmrl.data.drawn.puzzles.puzzle import COLOURS, INK, Puzzle, Said, paper, print_digit, whole

PLACE, HEIGHT, RADIUS = 32, 112, 10
MIDDLE = 48
"""Height of the row of discs, in pixels from the top; numbers are below."""


@dataclass
class Follow(Puzzle):
    """Which disc is to be followed, and the two places that change in each second of the clip."""

    disc: int
    discs: int
    changes: Sequence[tuple[int, int]]

    def look(self) -> Image.Image:
        return self.frame(0.0, COLOURS["red"])

    def act(self, said: Said, /) -> Observation:
        if said.word == "frame":
            seconds = said.numbers[0]
            if not 0 <= seconds <= len(self.changes):
                raise CallError(f"the clip lasts {len(self.changes)} seconds")
            return Observation(f"{seconds:.2f} s", (self.frame(seconds, INK),))
        place = whole(said.numbers[0], self.discs, "places")
        return Observation(reward=float(place == self.places(len(self.changes))[self.disc]), done=True)

    def places(self, seconds: int) -> list[int]:
        """Disc -> its place."""
        places = [*range(self.discs)]
        for one, other in self.changes[:seconds]:
            places = [{one: other, other: one}.get(place, place) for place in places]
        return places

    def frame(self, seconds: float, colour: tuple[int, int, int]) -> Image.Image:
        """The picture at a time, with the disc that is followed in this colour."""
        image, pen = paper(self.discs * PLACE, HEIGHT)
        done = int(seconds)
        moving, share = self.changes[done] if done < len(self.changes) else (0, 0), seconds - done
        for disc, place in enumerate(self.places(done)):
            x, y = float(place), float(MIDDLE)
            if place in moving and share:
                there = sum(moving) - place
                x, y = place + (there - place) * share, MIDDLE + 26 * math.sin(math.pi * share) * (1 if there > place else -1)
            left, top = x * PLACE + PLACE / 2 - RADIUS, y - RADIUS
            pen.ellipse((left, top, left + 2 * RADIUS, top + 2 * RADIUS), colour if disc == self.disc else INK)
        for place in range(self.discs):
            print_digit(pen, place + 1, place * PLACE + 12, HEIGHT - 18, 2)
        return image


def make(rng: np.random.Generator, level: int) -> Follow:
    discs, count = level + 2, level + 1
    pairs = [rng.choice(discs, 2, replace=False) for _ in range(count)]
    text = (
        f"The red disc goes black, and in each of {count} seconds two discs change places. Ask for frames of the clip, as in: "
        "frame 1.5. Then say where the disc is at its end, as in: answer 2."
    )
    changes = [(int(one), int(other)) for one, other in pairs]
    return Follow(text, {"frame": 1, "answer": 1}, count + 2, int(rng.integers(discs)), discs, changes)
