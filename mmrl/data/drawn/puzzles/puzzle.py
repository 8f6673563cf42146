"""The parts that puzzles share: a turn says a word and numbers, and the puzzle shows what came of it.

A puzzle is drawn from a generator and a level from 1 on, and rewards of all its answers add up to 1 for who solves it.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image, ImageDraw

from mmrl.answers.calls import CallError, parse_call, without_thoughts
from mmrl.core.samples import Observation
from mmrl.data.drawn.small_digits import GLYPHS

Colour = tuple[int, int, int]
Corners = tuple[int, int, int, int]
"""Left, top, right and bottom, in pixels; right and bottom are outside."""
COLOURS: Mapping[str, Colour] = {
    "red": (205, 45, 45),
    "blue": (45, 85, 205),
    "green": (40, 150, 70),
    "orange": (240, 150, 30),
    "purple": (140, 60, 170),
    "black": (30, 30, 30),
    "brown": (125, 80, 40),
}
PAPER, GREY, INK = (245, 245, 240), (150, 155, 160), (40, 40, 60)
HARDEST = 6
"""The highest level."""
_NUMBER = r"-?\d{1,6}(?:\.\d{1,6})?"


class Said(NamedTuple):
    """A command, as in "turn 5 90"."""

    word: str
    numbers: tuple[float, ...] = ()


@dataclass
class Puzzle(ABC):
    """A puzzle as it stands."""

    text: str
    """The task, with the words that may be said."""
    words: Mapping[str, int]
    """Word -> how many numbers follow it."""
    turns: int
    """The most that it takes; commands that cannot be followed count."""

    @abstractmethod
    def look(self) -> Image.Image:
        """The picture of the prompt."""

    @abstractmethod
    def act(self, said: Said, /) -> Observation:
        """The answer to a command; CallError for one that cannot be followed."""


def command(text: str, words: Mapping[str, int]) -> Said:
    """The last command of a turn, in plain words ("I turn 5 90") or as a tool call. Raises CallError."""
    call = parse_call(text, "tags")
    if call is None:
        pattern = rf"\b({'|'.join(words)})\b((?:[\s,:;(\[]+{_NUMBER})*)"
        found = [*re.finditer(pattern, without_thoughts(text), re.IGNORECASE)]
        word, numbers = (found[-1][1].lower(), [float(one) for one in re.findall(_NUMBER, found[-1][2])]) if found else ("", [])
    else:
        values = [one for value in call.arguments.values() for one in (value if isinstance(value, list) else [value])]
        word, numbers = call.name.lower(), [float(one) for one in values if isinstance(one, int | float)]
    if word not in words or len(numbers) != words[word]:
        raise CallError(f"say {' or '.join(f'{name} and {count} numbers' if count else name for name, count in words.items())}")
    return Said(word, tuple(numbers))


def whole(number: float, most: int, thing: str) -> int:
    """A number from 1 to `most`, counted from 0. Raises CallError for another."""
    if number != int(number) or not 1 <= number <= most:
        raise CallError(f"there are {thing} 1 to {most}")
    return int(number) - 1


def paper(width: int, height: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """An empty picture, and its pen."""
    image = Image.new("RGB", (width, height), PAPER)
    return image, ImageDraw.Draw(image)


def print_digit(pen: ImageDraw.ImageDraw, digit: int, left: int, top: int, dot: int, colour: Colour = INK) -> None:
    """Print a digit of 5 x 7 dots, each a square of `dot` pixels."""
    for row, dots in enumerate(GLYPHS[digit].split()):
        for column, inked in enumerate(dots):
            x, y = left + dot * column, top + dot * row
            if inked == "1":
                pen.rectangle((x, y, x + dot - 1, y + dot - 1), colour)


def beside(pictures: Sequence[Image.Image], gap: int = 8) -> Image.Image:
    """Pictures of one height in a row."""
    image, _ = paper(sum(one.width + gap for one in pictures) - gap, pictures[0].height)
    x = 0
    for one in pictures:
        image.paste(one, (x, 0))
        x += one.width + gap
    return image
