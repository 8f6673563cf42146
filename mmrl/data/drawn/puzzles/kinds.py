"""The puzzles by their names, each a pure function of (kind, seed, index, split, level)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.answers.calls import CallError
from mmrl.core.samples import Observation
from mmrl.data.drawn.puzzles.puzzle import COLOURS, GREY, INK, PAPER, Puzzle, Said, beside, paper, print_digit, whole
from mmrl.data.drawn.scenes import key_of

DIAL, HUB, RIM = 96, 48, 40
GEARS = 3
AIMED, ASTRAY = 6, 40
"""Degrees from the mark within which a needle is right, and from which on it earns nothing."""
DIALS = (
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
        return beside([draw_dial(needle, mark) for needle, mark in zip(self.needles, self.marks, strict=True)], 0)

    def act(self, said: Said, /) -> Observation:
        if said.word == "turn":
            dial = whole(said.numbers[0], len(self.needles), "dials")
            self.needles[dial] = round(self.needles[dial] + self.gears[dial] * said.numbers[1]) % 360
            return Observation("", (self.look(),))
        off = [abs((needle - mark + 180) % 360 - 180) for needle, mark in zip(self.needles, self.marks, strict=True)]
        right = [min(1.0, max(0.0, (ASTRAY - one) / (ASTRAY - AIMED))) for one in off]
        return Observation(reward=sum(right) / len(right), done=True)


def draw_dial(needle: int, mark: int) -> Image.Image:
    """One dial."""
    image, pen = paper(DIAL, DIAL)
    pen.ellipse((HUB - RIM, HUB - RIM, HUB + RIM, HUB + RIM), outline=GREY, width=2)
    (x, y), tip = end_of(mark, RIM), end_of(needle, RIM - 10)
    pen.ellipse((x - 5, y - 5, x + 5, y + 5), COLOURS["green"])
    pen.line((HUB, HUB, *tip), COLOURS["red"], 3)
    return image


def end_of(degrees: int, radius: int) -> tuple[float, float]:
    """Where a hand of this length ends, in pixels."""
    angle = math.radians(degrees)
    return HUB + radius * math.sin(angle), HUB - radius * math.cos(angle)


def make_dials(rng: np.random.Generator, level: int) -> Dials:
    """Needles to turn to their marks; how far one turns for what is said is to be seen. Level: dials."""
    marks = [int(one) for one in rng.integers(360, size=level)]
    needles = [(mark + int(rng.integers(ASTRAY, 360 - ASTRAY))) % 360 for mark in marks]
    gears = [int(one) for one in rng.integers(1, GEARS + 1, size=level)]
    return Dials(DIALS, {"turn": 2, "stop": 0}, 3 * level + 1, needles, marks, gears)


STEP, HALL, DISC = 32, 112, 10
ROW = 48
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
        image, pen = paper(self.discs * STEP, HALL)
        done = int(seconds)
        moving, share = self.changes[done] if done < len(self.changes) else (0, 0), seconds - done
        for disc, place in enumerate(self.places(done)):
            x, y = float(place), float(ROW)
            if place in moving and share:
                there = sum(moving) - place
                x, y = place + (there - place) * share, ROW + 26 * math.sin(math.pi * share) * (1 if there > place else -1)
            left, top = x * STEP + STEP / 2 - DISC, y - DISC
            pen.ellipse((left, top, left + 2 * DISC, top + 2 * DISC), colour if disc == self.disc else INK)
        for place in range(self.discs):
            print_digit(pen, place + 1, place * STEP + 12, HALL - 18, 2)
        return image


def make_follow(rng: np.random.Generator, level: int) -> Follow:
    """A disc to follow while discs of its kind change places. Level: places that are changed, less one, and discs, less two."""
    discs, count = level + 2, level + 1
    pairs = [rng.choice(discs, 2, replace=False) for _ in range(count)]
    text = (
        f"The red disc goes black, and in each of {count} seconds two discs change places. Ask for frames of the clip, as in: "
        "frame 1.5. Then say where the disc is at its end, as in: answer 2."
    )
    changes = [(int(one), int(other)) for one, other in pairs]
    return Follow(text, {"frame": 1, "answer": 1}, count + 2, int(rng.integers(discs)), discs, changes)


CARD, COLUMNS = 32, 4
CARDS = (
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


def make_pairs(rng: np.random.Generator, level: int) -> Cards:
    """Cards that lie face down, two of them turned over at a time. Level: pairs, less two."""
    digits = rng.choice(10, level + 2, replace=False)
    cards = [int(one) for one in rng.permutation(np.repeat(digits, 2))]
    return Cards(CARDS, {"open": 2}, len(cards), cards)


FLOOR, BAR, APART = 150, 16, 8
"""Pixels from the top to the foot of the bars, of a bar's width and between two."""
EXACT, WRONG = 3.0, 15.0
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
        reward = min(1.0, max(0.0, (WRONG - off) / (WRONG - EXACT))) / len(self.asked)
        return Observation("Next.", reward=reward, done=self.given == len(self.asked))

    def chart(self, ruler: float | None) -> Image.Image:
        """The bars, with the ruler at this height."""
        image, pen = paper(len(self.bars) * (BAR + APART) + APART, FLOOR + 8)
        for number, (name, height) in enumerate(self.bars.items()):
            x = APART + number * (BAR + APART)
            pen.rectangle((x, FLOOR - round(height * self.unit), x + BAR - 1, FLOOR), COLOURS[name])
        if ruler is not None:
            y = FLOOR - round(ruler * self.unit)
            pen.line((0, y, image.width, y), INK, 1)
        return image


def make_ruler(rng: np.random.Generator, level: int) -> Ruler:
    """A chart without numbers, to be read with a ruler that is laid across it. Level: bars that are asked for."""
    names = [str(one) for one in rng.permutation([one for one in COLOURS if one != "black"])]
    bars = {name: int(rng.integers(8, 99)) for name in names}
    asked = [str(one) for one in rng.choice(names, level, replace=False)]
    text = (
        f"How high are these bars: {', '.join(asked)}? Heights are from 0 to 100. Lay a ruler across the chart, as in: "
        "ruler 40. Give one height at a time, in this order, as in: answer 55."
    )
    return Ruler(text, {"ruler": 1, "answer": 1}, 3 * level + 3, bars, asked, float(rng.uniform(1.0, 1.4)))


SIZE, TILE = 3, 48
ORDER = (1, 2, 3, 4, 5, 6, 7, 8, 0)
"""Tiles row by row; 0 is the gap."""
SLIDES = (
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


def make_slide(rng: np.random.Generator, level: int) -> Slide:
    """Eight tiles to slide into their order. Level: slides from the order, less one."""
    tiles, last = ORDER, 0
    for _ in range(level + 1):
        last = int(rng.choice([tiles[place] for place in neighbours(tiles.index(0)) if tiles[place] != last]))
        tiles = after(tiles, last)
    return Slide(SLIDES, {"slide": 1}, 2 * level + 3, tiles, distance(tiles))


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
        return beside([draw_sheet(sheet, DOT) for sheet in self.sheets], 20)

    def act(self, said: Said, /) -> Observation:
        row, column = (whole(one, len(self.sheets[0]), "rows and columns") for one in said.numbers)
        if said.word == "look":
            parts = [draw_sheet(sheet[row : row + 1, column : column + 1], DOT * LARGER) for sheet in self.sheets]
            return Observation("", (beside(parts, 20),))
        place = (row, column)
        right = place in self.odd and place not in self.found
        self.found.add(place)
        return Observation(reward=right / len(self.odd), done=not right or self.odd <= self.found, text="Right." if right else "")


def draw_sheet(sheet: Sheet, dot: int) -> Image.Image:
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


PIECE = 48
TURNS = (
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


def make_upright(rng: np.random.Generator, level: int) -> Upright:
    """A picture cut into nine pieces, some of which are turned. Level: how many."""
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
    return Upright(TURNS, {"turn": 2}, 2 * level + 1, [image.crop(box) for box in boxes], quarters, level)


Kind = Literal["dial", "difference", "follow", "odd", "pairs", "ruler", "slide", "upright"]
KINDS: Mapping[str, Callable[[np.random.Generator, int], Puzzle]] = {
    "dial": make_dials,
    "difference": make_difference,
    "follow": make_follow,
    "odd": make_odd,
    "pairs": make_pairs,
    "ruler": make_ruler,
    "slide": make_slide,
    "upright": make_upright,
}


def make_puzzle(kind: str, seed: int, index: int, split: str, level: int) -> Puzzle:
    """Puzzle `index` of the endless series `seed`; `kind` is one of KINDS. ValueError for an unknown split."""
    return KINDS[kind](np.random.default_rng([*key_of(seed, index, split), level, *kind.encode()]), level)
