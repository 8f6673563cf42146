"""How near is a sound's tempo to the one that was asked for?

    r = max(0, 1 - |log2(found / wanted)| / tolerance)

The rises of loudness from frame to frame (10 ms) are compared with themselves some frames later; the tempo is that of the
shortest lag between 240 and 30 beats a minute whose agreement is a peak and at least 0.8 of the highest one's. 0 for a sound
without beats: silence, a steady tone. Twice or half the tempo scores 0. Parts: bpm.

Modality: sound
Range: [0, 1]
Source: own, by autocorrelation of onset strength as beat trackers do (Ellis, 2007)
Licence: Apache-2.0
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmrl import Need, Prompt, Sample, Scored
from mmrl.answers.needs import OfSamples
from mmrl.runtime.ranges import Positive, check_ranges
from mmrl.serving.media import FRAME, QUIET, loudness, sound_of

SLOWEST, FASTEST = 30.0, 240.0
"""Beats a minute."""
LEAST = 0.1
"""Agreement of a lag, as a share of that of lag 0, below which nothing repeats."""
LIKE_THE_HIGHEST = 0.8
"""Peaks this near to the highest one count as high: lags of two or three beats agree as well as one."""


@dataclass(frozen=True)
class Tempo(OfSamples):
    """Likeness of two tempos. ValueError for samples without a sound, and for sounds shorter than two wanted beats."""

    bpm: Positive | None = None
    """Beats a minute, 30 to 240; None: the prompt's column `bpm`."""
    tolerance: Positive = 0.5
    """Octaves at which nothing is earned."""
    needs = Need("the column bpm, unless bpm is set", lambda prompt, reward, _: reward.bpm or _wanted(prompt))

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.bpm is not None:
            _refuse_odd(self.bpm, "tempo.bpm")

    def score(self, sample: Sample, prompt: Prompt) -> Scored:
        wanted = _wanted(prompt) if self.bpm is None else self.bpm
        wave, rate = sound_of(sample, prompt.id)
        seconds = len(wave) / rate
        if seconds < 120 / wanted:
            raise ValueError(
                f"prompt {prompt.id!r} wants {wanted:g} beats a minute, and the sounds drawn last {seconds:g} s, less than "
                "two beats: raise policy.seconds, or policy.frames of clips"
            )
        found = _tempo_of(loudness(wave, rate))
        if found is None:
            return Scored(0.0)
        return Scored(max(0.0, 1 - abs(math.log2(found / wanted)) / self.tolerance), {"bpm": found})


def _tempo_of(levels: NDArray[np.float64]) -> float | None:
    """Beats a minute of a sound with this loudness (frames,); None where nothing repeats."""
    if len(levels) < 3 or levels.max() < QUIET:
        return None
    rises = np.diff(levels, prepend=levels[0]).clip(min=0)
    # a rise may fall between two frames
    rises = np.convolve(rises, [0.25, 0.5, 0.25], "same")
    rises -= rises.mean()
    size = len(rises)
    agreement = np.correlate(rises, rises, "full")[size - 1 :] * size / np.arange(size, 0, -1)
    if agreement[0] <= 0 or levels.std() < 1e-3 * levels.max():
        return None
    first, last = round(60 / FASTEST / FRAME), min(round(60 / SLOWEST / FRAME), size // 2 + 1, size - 2)
    peaks = [lag for lag in range(first, last + 1) if agreement[lag - 1] < agreement[lag] >= agreement[lag + 1]]
    highest = max((agreement[lag] for lag in peaks), default=0.0)
    if highest < LEAST * agreement[0]:
        return None
    lag = next(lag for lag in peaks if agreement[lag] >= LIKE_THE_HIGHEST * highest)
    before, at, after = agreement[lag - 1 : lag + 2]
    # the top of the parabola through the peak and its neighbours
    shift = 0.5 * (before - after) / (before - 2 * at + after)
    return 60 / ((lag + float(shift)) * FRAME)


def _wanted(prompt: Prompt) -> float:
    bpm = prompt.columns.get("bpm")
    if not isinstance(bpm, int | float) or isinstance(bpm, bool):
        raise ValueError(f"the column bpm of prompt {prompt.id!r} is {bpm!r}: give it beats a minute, or set the reward's bpm")
    _refuse_odd(float(bpm), f"the column bpm of prompt {prompt.id!r}")
    return float(bpm)


def _refuse_odd(bpm: float, place: str) -> None:
    if not SLOWEST <= bpm <= FASTEST:
        raise ValueError(f"{place} is {bpm:g}, and tempos of {SLOWEST:g} to {FASTEST:g} are told apart: change it")
