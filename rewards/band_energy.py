"""How much of a sound's energy lies in a band of frequencies?

    r = sum over low <= |f| < high of |X(f)|^2 / sum over all f of |X(f)|^2,    X the spectrum of the mean of the channels

0 for silence. A steady offset counts as energy at 0 Hz, so that hum and clicks cost what they take from the band. Parts: level,
the loudest frame's root mean square in decibels below full scale.

Modality: sound
Range: [0, 1]
Source: own; Parseval's theorem
Licence: Apache-2.0
"""

from dataclasses import dataclass

import numpy as np

from mmrl import Need, Prompt, Sample, Scored
from mmrl.answers.needs import OfSamples
from mmrl.runtime.ranges import NonNegative, Positive, check_ranges
from mmrl.serving.media import QUIET, loudness, pair_of, sound_of

SILENCE = -120.0
"""Decibels that stand for no sound at all."""


@dataclass(frozen=True)
class BandEnergy(OfSamples):
    """Share of energy in a band. ValueError for samples without a sound, and for bands that the sound's rate cannot hold."""

    low: NonNegative | None = None
    """Hz; None: the prompt's column `band`."""
    high: Positive | None = None
    """Hz; None: the prompt's column `band`."""
    needs = Need("the column band, [low, high] in Hz, unless low and high are set", lambda p, reward, _: reward._band(p))

    def __post_init__(self) -> None:
        check_ranges(self)
        if (self.low is None) != (self.high is None) or (
            self.low is not None and self.high is not None and self.low >= self.high
        ):
            raise ValueError(f"band_energy: low is {self.low} and high {self.high}: set both, low below high, or neither")

    def _band(self, prompt: Prompt) -> tuple[float, float]:
        if self.low is not None and self.high is not None:
            return self.low, self.high
        return pair_of(prompt, "band", "[low, high] in Hz")

    def score(self, sample: Sample, prompt: Prompt) -> Scored:
        wave, rate = sound_of(sample, prompt.id)
        low, high = self._band(prompt)
        if low >= rate / 2:
            raise ValueError(
                f"the band of prompt {prompt.id!r} begins at {low} Hz, and sounds of {rate} samples a second end at "
                f"{rate / 2:g} Hz: take a lower band"
            )
        loudest = float(loudness(wave, rate).max())
        level = {"level": 20 * np.log10(loudest) if loudest > 10 ** (SILENCE / 20) else SILENCE}
        if loudest < QUIET:
            return Scored(0.0, level)
        power = np.abs(np.fft.rfft(wave.astype(np.float64))) ** 2
        # every frequency but 0 and the last one of an even number stands for two
        power[1 : len(power) - (len(wave) % 2 == 0)] *= 2
        at = np.fft.rfftfreq(len(wave), 1 / rate)
        return Scored(float(power[(low <= at) & (at < high)].sum() / power.sum()), level)
