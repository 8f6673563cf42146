"""Tones in one quarter of a second: the sounds a tiny generator is taught to draw, and what they are judged by.

A caption is "a low tone comes first". `Tones` are the sounds an uncurated collection would have: some captions belong to another
sound, and many tones ring on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmrl.data.drawn.shapes import every_fourth

Wave = NDArray[np.float32]
"""(samples,) in [-1, 1]."""
RATE, SECONDS = 8_000, 1.0
PITCHES = {"low": 160.0, "middle": 400.0, "high": 1_000.0, "shrill": 2_400.0}
"""Name -> Hz."""
PLACES = ("first", "second", "third", "last")
"""Quarters of the sound."""
REACH = 1.25
"""A tone's band reaches from its pitch divided by this to its pitch times this."""
FADE = 0.005
"""Seconds in which a tone comes and goes, so that it does not click."""
PHASE = 0.25
"""Turns within which the phase of a tone lies at second 0.

Were it any phase, tones of a caption would cancel in the mean, also in that of their latents: when a tone rings would show in
their spread alone, which a small model of flow does not learn.
"""


class Tone(NamedTuple):
    """A pitch and the quarter it rings in, as a caption asks for it."""

    pitch: str
    place: str

    @property
    def caption(self) -> str:
        return f"a {self.pitch} tone comes {self.place}"

    @property
    def band(self) -> tuple[float, float]:
        """Hz."""
        return PITCHES[self.pitch] / REACH, PITCHES[self.pitch] * REACH

    @property
    def span(self) -> tuple[float, float]:
        """Seconds."""
        quarter = SECONDS / len(PLACES)
        start = PLACES.index(self.place) * quarter
        return start, start + quarter


TONES = tuple(Tone(*words) for words in product(PITCHES, PLACES))
HELD_OUT = every_fourth(TONES, PITCHES, PLACES)
"""Combinations that are held out; every pitch and place occurs in them once."""
TRAIN = tuple(tone for tone in TONES if tone not in HELD_OUT)


def draw(tone: Tone, rng: np.random.Generator, ringing: bool = False) -> Wave:
    """The tone at a phase and a loudness of chance; `ringing`: it begins too early and stops too late, by a quarter in all."""
    at = np.arange(round(RATE * SECONDS)) / RATE
    start, end = tone.span
    if ringing:
        early = rng.uniform(0, SECONDS / len(PLACES))
        start, end = max(0.0, start - early), min(SECONDS, end + SECONDS / len(PLACES) - early)
    shape = np.minimum((at - start) / FADE, (end - at) / FADE).clip(0, 1)
    loud = rng.uniform(0.4, 0.7)
    return (loud * shape * np.sin(2 * np.pi * (PITCHES[tone.pitch] * at + rng.uniform(0, PHASE)))).astype(np.float32)


@dataclass(frozen=True)
class Tones:
    """Sounds and captions to learn from, with the faults of an uncurated collection."""

    confused: float = 0.2
    """Share of captions that belong to another sound."""
    ringing: float = 0.5
    """Share of tones that ring on."""

    @property
    def words(self) -> Sequence[str]:
        """Every word of the captions."""
        return (*PITCHES, *PLACES, "a", "tone", "comes")

    def batch(self, rng: np.random.Generator, size: int) -> tuple[Wave, list[str]]:
        """`size` waves (size, samples) and their captions."""
        shown = [TRAIN[i] for i in rng.integers(len(TRAIN), size=size)]
        written = [TRAIN[rng.integers(len(TRAIN))] if rng.random() < self.confused else tone for tone in shown]
        waves = [draw(tone, rng, rng.random() < self.ringing) for tone in shown]
        return np.stack(waves), [tone.caption for tone in written]
