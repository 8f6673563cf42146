"""Clips with known truth: real handwritten digits that enter, move, collide and leave among discs, as H.264 files.

A clip is a pure function of (seed, index, split, style, kinds of questions). Handwriting of held-out clips appears in no other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import permutations
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmrl.answers.spans.interval import Interval
from mmrl.data.drawn.scenes import BACKGROUNDS, SPLITS, Pixels, handwriting, key_of
from mmrl.runtime.ranges import Range, check_ranges

KINDS = ("when", "which", "how_many", "order")
"""when: a span. which: several letters. how_many: a number. order: one letter."""
LETTERS = "ABCDEFGH"
_ATTEMPTS = 500
"""Random casts that are tried for a clip before it is refused."""


@dataclass(frozen=True)
class ClipStyle:
    """The look of clips. The smaller side, seconds and num_discs, the sooner a small model learns from them."""

    side: Annotated[int, Range(16, 4096)] = 48
    """Width and height in pixels; even, as H.264 demands."""
    glyph: tuple[Annotated[int, Range(8, 1024)], Annotated[int, Range(8, 1024)]] = (20, 24)
    """Smallest and largest side of a digit in pixels, its empty margin included."""
    seconds: Annotated[float | int, Range(above=0, high=3600)] = 8.0
    """Length of a clip."""
    fps: Annotated[int, Range(1, 1000)] = 10
    """Frames per second of the file; borders of spans are borders of its frames."""
    time_grid: Annotated[float | int, Range(above=0)] = 1.0
    """Seconds. Put here the step at which the model sees time: no span begins or ends near a multiple of it."""
    margin: Annotated[float | int, Range(0, below=0.5)] = 0.2
    """Borders keep this share of time_grid away from its multiples; 0 allows them there."""
    stay: tuple[Annotated[float | int, Range(above=0)], Annotated[float | int, Range(above=0)]] = (2.0, 5.0)
    """Shortest and longest stay of a digit, in seconds."""
    crossing: Annotated[float | int, Range(above=0)] = 0.3
    """Seconds in which a digit enters or leaves."""
    speed: Annotated[float | int, Range(0)] = 16.0
    """Pixels per second, in between."""
    digits: tuple[Annotated[int, Range(0, 9)], ...] = tuple(range(10))
    """Digits that may appear."""
    asked: tuple[Annotated[int, Range(0, 9)], ...] = ()
    """Digits whose time is asked for; () = all that may appear."""
    shown: tuple[Annotated[int, Range(1, 64)], Annotated[int, Range(1, 64)]] = (2, 3)
    """Fewest and most digits of a clip; no digit appears twice."""
    num_options: Annotated[int, Range(2, len(LETTERS))] = 4
    """Letters to choose from."""
    num_discs: Annotated[int, Range(0, 64)] = 1
    """Coloured discs that come and go like digits."""
    background: Literal["noise", "photo"] = "noise"
    """noise: dark and grainy. photo: soft shades of colour, blurred shapes and grain."""

    def __post_init__(self) -> None:
        check_ranges(self)
        frames, crossing = self.seconds * self.fps, self.crossing * self.fps
        checks = {
            "side": (self.side % 2 == 0, "an even number"),
            "glyph": (self.glyph[0] <= self.glyph[1] <= self.side, f"(smallest, largest) in 8..{self.side}"),
            "seconds": (frames >= 4, "at least four frames long"),
            "stay": (self.stay[0] <= self.stay[1] <= self.seconds, f"(shortest, longest) up to {self.seconds} seconds"),
            "crossing": (1 <= round(crossing) <= 8, "one to eight frames long"),
            "digits": (len(set(self.digits)) == len(self.digits) >= 1, "different digits, one at least"),
            "asked": (set(self.asked) <= set(self.digits), "some of `digits`"),
            "shown": (self.shown[0] <= self.shown[1] <= len(self.digits), f"(fewest, most) in 1..{len(self.digits)}"),
        }
        for name, (fine, wanted) in checks.items():
            if not fine:
                raise ValueError(f"clip style: {name} is {getattr(self, name)!r}, it must be {wanted}")
        if not _spans(self):
            raise ValueError(
                f"clip style: no span of {self.stay[0]:g} to {self.stay[1]:g} seconds keeps {self.margin:g} off a grid of "
                f"{self.time_grid:g} seconds at {self.fps} frames per second: raise fps or seconds, or lower margin"
            )

    @property
    def num_frames(self) -> int:
        return round(self.seconds * self.fps)


@cache
def _spans(style: "ClipStyle") -> list[tuple[int, int]]:
    """All (first, last) frames that a stay may have."""
    phases = np.arange(style.num_frames) / style.fps / style.time_grid % 1
    off = np.flatnonzero((phases >= style.margin - 1e-9) & (phases <= 1 - style.margin + 1e-9))
    borders = [int(frame) for frame in off if frame > 0]
    least = max(style.stay[0] * style.fps, 2 * round(style.crossing * style.fps) + 1)
    return [(a, b) for a in borders for b in borders if least - 1e-9 <= b - a <= style.stay[1] * style.fps + 1e-9]


@dataclass(frozen=True)
class Actor:
    """A digit, or a disc, and the frames in which any part of it is visible: first to last - 1."""

    digit: int | None
    first: int
    last: int


@dataclass(frozen=True)
class DigitClip:
    """The events of a clip, and the question about it; `draw` makes the pictures."""

    key: tuple[int, int, int]
    """Seed, index and split."""
    style: ClipStyle
    kind: str
    actors: tuple[Actor, ...]
    """Digits, then discs."""
    question: str
    """Without the options."""
    answer: Any
    """An Interval in seconds, letters such as "A,C", or a number."""
    options: tuple[str, ...] = ()

    @property
    def duration(self) -> float:
        return self.style.num_frames / self.style.fps

    def span(self, actor: Actor) -> Interval:
        return Interval(actor.first / self.style.fps, actor.last / self.style.fps)

    @property
    def text(self) -> str:
        """The question and its options: `Which digits appear? A: 3 B: 5`."""
        return " ".join([self.question, *(f"{letter}: {option}" for letter, option in zip(LETTERS, self.options, strict=False))])

    @property
    def digits(self) -> tuple[Actor, ...]:
        return tuple(actor for actor in self.actors if actor.digit is not None)


def style_of(values: Mapping[str, object]) -> ClipStyle:
    """A style from the words of a config: `style_of({"side": 32})`; ValueError for a field that does not exist."""
    known = [f.name for f in fields(ClipStyle)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(f"clip style: {', '.join(unknown)} is not understood; its fields are {', '.join(known)}")
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return ClipStyle(**given)


def plan_clip(
    seed: int, index: int, split: str = "train", style: ClipStyle = ClipStyle(), kinds: tuple[str, ...] = KINDS
) -> DigitClip:
    """Clip `index` of the endless series `seed`; the question's kind is drawn from `kinds`, where a kind may occur repeatedly.

    Raises ValueError for an unknown split or kind, or a clip too short for its digits to come one after the other.
    """
    if not kinds or not set(kinds) <= set(KINDS):
        raise ValueError(f"questions {list(kinds)} are not understood: choose from {', '.join(KINDS)}")
    key = key_of(seed, index, split)
    rng = np.random.default_rng([*key, 0])
    kind = kinds[rng.integers(len(kinds))]
    digits = _cast(rng, style, kind)
    actors = _entrances(rng, style, digits, apart=kind == "order")
    clip = DigitClip(key, style, kind, actors, "", "")
    match kind:
        case "when":
            return replace(clip, question=f"When is the {digits[0]} visible?", answer=clip.span(actors[0]))
        case "which":
            return _asks_which(rng, clip)
        case "how_many":
            return replace(clip, question="How many digits appear?", answer=len(digits))
        case _:
            return _asks_order(rng, clip)


def draw(clip: DigitClip) -> NDArray[np.uint8]:
    """The clip's pictures, (frames, side, side, 3)."""
    style, rng = clip.style, np.random.default_rng([*clip.key, 1])
    canvas = BACKGROUNDS[style.background](rng, style.side)
    split = SPLITS[clip.key[2]]
    inks = [_disc(rng, style) if a.digit is None else handwriting(rng, a.digit, split, style.glyph)[1] for a in clip.actors]
    colours = rng.uniform(0.5, 1.0, (len(inks), 3)).astype(np.float32)
    places = _paths(rng, clip, [ink.shape for ink in inks])
    film = np.repeat(canvas[None], style.num_frames, axis=0)
    for actor, ink, colour, path in zip(clip.actors, inks, colours, places, strict=True):
        for frame in range(actor.first, actor.last):
            _blend(film[frame], ink, colour, *path[frame - actor.first])
    return (film.clip(0, 1) * 255).astype(np.uint8)


def _cast(rng: np.random.Generator, style: ClipStyle, kind: str) -> list[int]:
    """The digits of a clip; the first is the one that is asked for."""
    fewest = max(style.shown[0], min(2, style.shown[1])) if kind == "order" else style.shown[0]
    number = int(rng.integers(fewest, style.shown[1] + 1))
    first = int(rng.choice((style.asked if kind == "when" else ()) or style.digits))
    others = [digit for digit in style.digits if digit != first]
    return [first, *(int(digit) for digit in rng.choice(others, number - 1, replace=False))] if others else [first]


def _entrances(rng: np.random.Generator, style: ClipStyle, digits: list[int], apart: bool) -> tuple[Actor, ...]:
    """The frames in which each actor is visible; with `apart`, digits enter at least one step of the time grid apart."""
    spans, cast = _spans(style), [*digits, *[None] * style.num_discs]
    for _ in range(_ATTEMPTS):
        chosen = [spans[i] for i in rng.integers(len(spans), size=len(cast))]
        firsts = np.sort([first for first, _ in chosen[: len(digits)]])
        if not apart or len(firsts) < 2 or np.diff(firsts).min() >= style.time_grid * style.fps:
            return tuple(Actor(digit, first, last) for digit, (first, last) in zip(cast, chosen, strict=True))
    raise ValueError(
        f"{len(digits)} digits cannot come {style.time_grid:g} seconds after one another in a clip of {style.seconds:g} seconds: "
        "lower shown or time_grid, or raise seconds"
    )


def _asks_which(rng: np.random.Generator, clip: DigitClip) -> DigitClip:
    """Ask which digits appear; options are in ascending order, so that their order gives nothing away, and some do not appear."""
    there = [int(actor.digit or 0) for actor in clip.digits]
    absent = [digit for digit in clip.style.digits if digit not in there]
    wrong = rng.choice(absent, min(len(absent), max(clip.style.num_options - len(there), 0)), replace=False) if absent else []
    options = sorted([*there[: clip.style.num_options], *map(int, wrong)])
    right = ",".join(letter for letter, digit in zip(LETTERS, options, strict=False) if digit in there)
    return replace(clip, question="Which digits appear?", options=tuple(map(str, options)), answer=right)


def _asks_order(rng: np.random.Generator, clip: DigitClip) -> DigitClip:
    come = tuple(str(actor.digit) for actor in sorted(clip.digits, key=lambda actor: actor.first))
    others = [order for order in permutations(come) if order != come]
    picked = rng.choice(len(others), min(len(others), clip.style.num_options - 1), replace=False) if others else []
    orders = [come, *(others[i] for i in picked)]
    orders = [orders[i] for i in rng.permutation(len(orders))]
    question, options = "In what order do the digits appear?", tuple(map(" ".join, orders))
    return replace(clip, question=question, options=options, answer=LETTERS[orders.index(come)])


def _disc(rng: np.random.Generator, style: ClipStyle) -> Pixels:
    side = int(rng.integers(style.glyph[0] // 2, style.glyph[1] // 2 + 1))
    y, x = (np.mgrid[0:side, 0:side] + 0.5) / side * 2 - 1
    return (x**2 + y**2 <= 1).astype(np.float32)


def _blend(picture: Pixels, ink: Pixels, colour: Pixels, x: int, y: int) -> None:
    """Paint an ink into the picture with its upper left corner at (x, y); parts of it may lie outside."""
    side, (height, width) = len(picture), ink.shape
    inside = ink[max(-y, 0) : side - y, max(-x, 0) : side - x]
    area = picture[max(y, 0) : min(y + height, side), max(x, 0) : min(x + width, side)]
    area += inside[..., None] * (colour - area)


def _paths(rng: np.random.Generator, clip: DigitClip, shapes: list[tuple[int, ...]]) -> list[list[tuple[int, int]]]:
    """For every actor the upper left corners (x, y) of its frames.

    It comes in over an edge, moves straight, bounces off walls and other actors, and leaves over the nearest edge.
    """
    style, frames = clip.style, round(clip.style.crossing * clip.style.fps)
    rooms = [np.array([style.side - width, style.side - height], np.float64) for height, width in shapes]
    places = [rng.uniform(0, room) for room in rooms]
    angles = rng.uniform(0, 2 * np.pi, len(shapes))
    speeds = style.speed / style.fps * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    sizes = [np.array([width, height], np.float64) for height, width in shapes]
    paths: list[list[tuple[int, int]]] = [[] for _ in shapes]
    gates = [_nearest_edge(place, size, style.side) for place, size in zip(places, sizes, strict=True)]
    for frame in range(style.num_frames):
        roaming: list[int] = []
        for i, actor in enumerate(clip.actors):
            if not actor.first <= frame < actor.last:
                continue
            entered, left = frame - actor.first + 1, frame - (actor.last - frames) + 1
            if left == 1:
                gates[i] = _nearest_edge(places[i], sizes[i], style.side)
            share = entered / frames if left < 1 else 1 - left / (frames + 1)
            paths[i].append(_towards(gates[i], places[i], min(share, 1.0)))
            if entered >= frames and left < 0:
                roaming.append(i)
        _move(roaming, places, speeds, sizes, rooms)
    return paths


def _nearest_edge(place: NDArray[np.float64], size: NDArray[np.float64], side: int) -> NDArray[np.float64]:
    """The place of an actor that has just gone over the edge nearest to it."""
    ways = np.array([place[0] + size[0], side - place[0], place[1] + size[1], side - place[1]])
    edge = int(ways.argmin())
    gone = place.copy()
    gone[edge // 2] += ways[edge] * (1 if edge % 2 else -1)
    return gone


def _towards(gate: NDArray[np.float64], place: NDArray[np.float64], share: float) -> tuple[int, int]:
    """A place between the gate (0) and the place (1), in whole pixels, at least one pixel inside."""
    way = (place - gate) * share
    x, y = gate + np.sign(way) * np.maximum(np.abs(way).round(), np.abs(way) > 0)
    return round(x), round(y)


def _move(
    roaming: list[int],
    places: list[NDArray[np.float64]],
    speeds: NDArray[np.float64],
    sizes: list[NDArray[np.float64]],
    rooms: list[NDArray[np.float64]],
) -> None:
    """Move all actors by one frame: two that overlap and approach each other swap speeds along the axis of least overlap."""
    for n, i in enumerate(roaming):
        for j in roaming[:n]:
            centre = places[i] + sizes[i] / 2 - places[j] - sizes[j] / 2
            overlap = (sizes[i] + sizes[j]) / 2 - np.abs(centre)
            axis = int(overlap.argmin())
            if overlap.min() > 0 and (speeds[i] - speeds[j])[axis] * centre[axis] < 0:
                speeds[[i, j], axis] = speeds[[j, i], axis]
    for i in roaming:
        wanted = places[i] + speeds[i]
        hit = (wanted < 0) | (wanted > rooms[i])
        speeds[i][hit] *= -1
        places[i] = wanted.clip(0, rooms[i])
