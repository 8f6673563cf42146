"""Sounds with known truth: noise in which one tone is heard for some whole seconds.

A sound is a pure function of (seed, index, split, seconds).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmrl.answers.spans.interval import Interval
from mmrl.data.drawn.scenes import key_of

QUESTION = "When does it beep?"
RATE = 2_000
"""Samples a second."""
LONGEST = 4
"""Seconds of a tone at most, from 1 on."""
LOUD, NOISE = 0.5, 0.03
"""Amplitude of the tone, and the noise's deviation."""
PITCH = 200.0, 800.0
"""The lowest and the highest tone, in Hz."""
_STREAM = 96


@dataclass(frozen=True)
class Beep:
    """One sound; `draw` makes its samples."""

    key: tuple[int, int, int]
    """Seed, index and split."""
    seconds: int
    span: Interval
    """When the tone is heard."""
    pitch: float


def plan_beep(seed: int, index: int, split: str = "train", seconds: int = 10) -> Beep:
    """Sound `index` of the endless series `seed`; ValueError for an unknown split, or a sound too short for its tone."""
    if seconds <= LONGEST:
        raise ValueError(f"seconds is {seconds}: a tone lasts up to {LONGEST} seconds, so take {LONGEST + 1} or more")
    key = key_of(seed, index, split)
    rng = np.random.default_rng([*key, _STREAM])
    length = int(rng.integers(1, LONGEST + 1))
    start = int(rng.integers(seconds - length + 1))
    return Beep(key, seconds, Interval(start, start + length), float(rng.uniform(*PITCH)))


def draw(beep: Beep, is_silent: bool = False) -> NDArray[np.float32]:
    """Its samples (seconds * RATE,) in [-1, 1]; `is_silent`: the noise alone."""
    rng = np.random.default_rng([*beep.key, _STREAM + 1])
    times = np.arange(beep.seconds * RATE) / RATE
    tone = LOUD * np.sin(2 * np.pi * beep.pitch * times) * ((times >= beep.span.start) & (times < beep.span.end))
    return (NOISE * rng.standard_normal(len(times)) + (0 if is_silent else tone)).astype(np.float32)
