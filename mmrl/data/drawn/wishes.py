"""Coloured shapes as people ask for them: "give me a scarlet disc on the west", where captions say "a red circle on the left"."""

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

import numpy as np

from mmrl.data.drawn.shapes import HELD_OUT, TRAIN, Wish

OTHER: Mapping[str, tuple[str, str]] = {
    "red": ("scarlet", "crimson"),
    "green": ("jade", "lime"),
    "blue": ("navy", "cobalt"),
    "yellow": ("golden", "lemon"),
    "circle": ("disc", "ball"),
    "square": ("box", "block"),
    "triangle": ("wedge", "cone"),
    "left": ("west", "port"),
    "right": ("east", "starboard"),
    "top": ("north", "ceiling"),
    "bottom": ("south", "floor"),
}
"""A caption's word -> what people say for it."""
OPENINGS = ("", "draw ", "please, ", "give me ", "show me ", "make ", "how about ", "we need ", "next, ")


class SpokenWish(NamedTuple):
    """A shape, and the words in which it is asked for."""

    colour: str
    shape: str
    side: str
    caption: str


def wordings(wish: Wish) -> list[SpokenWish]:
    """All ways to ask for it, 9 openings by 2 words for each thing."""
    words = product(OPENINGS, *(OTHER[word] for word in wish))
    return [SpokenWish(*wish, f"{opening}{Wish(*others).caption}") for opening, *others in words]


def paraphrase(wish: Wish, rng: np.random.Generator) -> str:
    """The wish in words of users and captions, each of the three for a thing equally often."""
    return Wish(*((word, *OTHER[word])[rng.integers(3)] for word in wish)).caption


SPLITS = {
    split: tuple(asked for wish in wishes for asked in wordings(wish))
    for split, wishes in (("train", TRAIN), ("held_out", HELD_OUT))
}
