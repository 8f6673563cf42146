"""Cards that lie face down, two of them turned over at a time. Level: pairs, less two."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from mmrl.answers.calls import CallError
from mmrl.core.samples import Observation
from mmrl.data.drawn.puzzles.puzzle import COLOURS, GREY, Puzzle, Said, paper, print_digit, whole

CARD, COLUMNS = 32, 4
TEXT = (
    "Find the pairs. The cards are numbered row by row, from 1 on; turn two over, as in: open 1 6. Equal ones stay open, others "
    "are turned back."
)


@dataclass
class Cards(Puzzle):
    """The digit of each card, and the places of the cards that are out."""

    cards: Sequence[int]
    out: set[int] = field(default_factory=set[int])

    def look(self) -> Image.Image:
        return self.table(())

    def act(self, said: Said, /) -> Observation:
        one, other = (whole(number, len(self.cards), "cards") for number in said.numbers)
        if one == other or {one, other} & self.out:
            raise CallError("two different cards that lie face down are needed")
        pair = self.cards[one] == self.cards[other]
        self.out |= {one, other} if pair else set()
        done = len(self.out) == len(self.cards)
        return Observation("", (self.table((one, other)),), reward=2 * pair / len(self.cards), done=done)

    def table(self, shown: Sequence[int]) -> Image.Image:
        """All cards, with these and those that are out open."""
        image, pen = paper(COLUMNS * CARD, -(-len(self.cards) // COLUMNS) * CARD)
        for place, digit in enumerate(self.cards):
            x, y = place % COLUMNS * CARD, place // COLUMNS * CARD
            pen.rectangle((x + 2, y + 2, x + CARD - 3, y + CARD - 3), None if place in {*shown, *self.out} else GREY, GREY)
            if place in {*shown, *self.out}:
                print_digit(pen, digit, x + 8, y + 5, 3, COLOURS["blue"])
        return image


def make(rng: np.random.Generator, level: int) -> Cards:
    digits = rng.choice(10, level + 2, replace=False)
    cards = [int(one) for one in rng.permutation(np.repeat(digits, 2))]
    return Cards(TEXT, {"open": 2}, len(cards), cards)
