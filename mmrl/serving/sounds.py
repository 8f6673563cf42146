"""Sounds of samples, for rewards: their samples, and how loud they are over time. Imports no torch."""

import numpy as np
from numpy.typing import NDArray

from mmrl.core.samples import Prompt, Sample
from mmrl.runtime.ranges import is_finite, is_number

Wave = NDArray[np.float32]
"""(samples,) in [-1, 1]."""
FRAME = 0.01
"""Seconds of a frame."""
QUIET = 1e-3
"""A sound whose loudest frame is below counts as silent: 60 dB under full scale."""


def sound_of(sample: Sample, prompt_id: str) -> tuple[Wave, int]:
    """The mean of the channels of a sample's sound (samples,), and its rate.

    ValueError without a sound, or for one that is empty or not finite.
    """
    sound, who = sample.sound, f"the sound of a sample of prompt {prompt_id!r}"
    if sound is None:
        raise ValueError(f"a sample of prompt {prompt_id!r} has no sound: this reward is for policies that make sounds")
    if not isinstance(sound, np.ndarray) or sound.dtype != np.float32 or sound.ndim != 2 or 0 in sound.shape:
        raise ValueError(f"{who} is no array of float32 (channels, samples) with samples in it")
    if not np.isfinite(sound).all():
        raise ValueError(f"{who} holds samples that are no finite numbers: look for latents that grew")
    if not isinstance(sample.rate, int) or sample.rate < 1:
        raise ValueError(f"{who} has the rate {sample.rate!r}: it needs samples per second")
    return sound.mean(0, dtype=np.float32), sample.rate


def loudness(wave: Wave, rate: int) -> NDArray[np.float64]:
    """The root mean square of every frame (frames,); what is left at the end is a shorter one."""
    size = max(1, round(FRAME * rate))
    frames = np.split(wave.astype(np.float64), range(size, len(wave), size))
    return np.array([np.sqrt(np.mean(frame**2)) for frame in frames])


def pair_of(prompt: Prompt, column: str, what: str) -> tuple[float, float]:
    """Two rising numbers in a prompt's column; ValueError where they are none."""
    found = prompt.columns.get(column)
    if found is None:
        raise ValueError(f"prompt {prompt.id!r} has no column {column!r}: give it {what}, or set it in the reward")
    if not isinstance(found, list | tuple) or len(found) != 2 or not all(is_number(one) and is_finite(one) for one in found):
        raise ValueError(f"the column {column} of prompt {prompt.id!r} is {str(found)[:40]!r}: give it {what}")
    low, high = map(float, found)
    if not 0 <= low < high:
        raise ValueError(f"the column {column} of prompt {prompt.id!r} is {low:g} to {high:g}: give it {what}, the smaller first")
    return low, high
