"""The worlds of a dry run: what they answer fills an episode up to its limits, with pictures first."""

from bisect import bisect
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import isqrt

from PIL import Image
from torch import Tensor

from mmrl.core.episodes import Limits
from mmrl.core.types import Observation, Prompt, Turn
from mmrl.policies.shared.dry_run import size_of
from mmrl.policies.text.families.base import OwnProcessor
from mmrl.policies.text.prompt.encode import Encoder
from mmrl.policies.text.write.observe import observe

STEP = 28
"""Sides of pictures are a multiple of this, in pixels."""
LETTERS = "".join(chr(ord("a") + (i * i) % 26) for i in range(26))
"""A text of these has a token per letter at most."""


@dataclass
class DryWorlds:
    """Worlds that answer every turn with as many pictures as the limits allow, as large as fit, and text in what room is left."""

    limits: Limits
    wave: float = 1.0
    repeats: bool = True
    answers: list[Observation] = field(default_factory=list[Observation])
    """To each turn but the last."""
    asked: list[int] = field(default_factory=list[int])
    """Turns of each world so far."""
    pictures: int = 0
    """Of an episode."""
    side: int = 0
    """Of the largest picture, in pixels."""
    tokens: int = 0
    """Of the largest picture."""
    bytes: int = 0
    """Of the pictures of an episode, as the model is given them."""

    def fill(self, encoder: Encoder, longest: int) -> None:
        """Make the answers, for turns of `longest` tokens that no stop token ended, so that the template's is added."""
        limits, token = self.limits, encoder.family.image_token_id
        count = limits.turns - 1
        for k in range(count):
            room = (limits.tokens - limits.turns * longest) // count
            pictures = (limits.pictures or 0) // count + (k < (limits.pictures or 0) % count) if encoder.family.vision else 0
            side = 0
            while pictures and not (side := self.largest(encoder, pictures, room)):
                pictures -= 1
            shown = blank(pictures, side)
            found = observe(encoder, Observation("", shown), None)
            left = max(0, min(room - len(found), limits.text))
            self.answers.append(Observation((LETTERS * (left // 26 + 1))[:left], shown))
            self.pictures, self.side = self.pictures + pictures, max(self.side, side)
            self.bytes += size_of(found.media.values())
            self.tokens = max(self.tokens, int((found.token_ids == token).sum()) // max(1, pictures))

    def largest(self, encoder: Encoder, pictures: int, room: int) -> int:
        """The side of the largest pictures, all of which fit; 0 where none do."""
        sides = range(STEP, isqrt(self.limits.pixels) + 1, STEP)
        fits = bisect(sides, room, key=lambda side: len(observe(encoder, Observation("", blank(pictures, side)), None)))
        return sides[fits - 1] if fits else 0

    @property
    def words(self) -> str:
        """The longest episode, in a few words."""
        shown = f"{self.pictures} pictures of up to {self.side} x {self.side} pixels ({self.tokens} tokens each)"
        seen = shown if self.pictures else "no picture"
        return f"up to {self.limits.turns} turns, {seen}, {self.limits.tokens} tokens behind the prompt"

    def open(self, prompt: Prompt, seed: int) -> int:
        self.asked.append(0)
        return len(self.asked) - 1

    def step(self, number: int, turn: Turn) -> Future[Observation | None]:
        future = Future[Observation | None]()
        future.set_result(self.answers[min(self.asked[number], len(self.answers) - 1)] if self.answers else None)
        self.asked[number] += 1
        return future

    def close(self, number: int) -> None:
        """Nothing is open."""

    def drain_metrics(self) -> Mapping[str, float]:
        return {}


@dataclass(frozen=True)
class OneReading(OwnProcessor):
    """A processor that reads every observation once: later ones are tensors of their own that share the first one's memory."""

    known: dict[str, dict[str, Tensor]] = field(default_factory=dict[str, dict[str, Tensor]])

    def __call__(self, text: Sequence[str], **options: object) -> Mapping[str, Tensor]:
        if options.get("add_special_tokens", True):
            return self.inner(text=text, **options)
        if text[0] not in self.known:
            self.known[text[0]] = dict(self.inner(text=text, **options))
        return {name: x.view_as(x) for name, x in self.known[text[0]].items()}


def blank(count: int, side: int) -> tuple[Image.Image, ...]:
    return tuple(Image.new("RGB", (side, side)) for _ in range(count))
