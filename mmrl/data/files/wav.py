"""Sounds as .wav files, 16 bits a sample, by the standard library. Imports no torch."""

import io
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmrl.runtime.disk import whole_file


def wav_bytes(samples: NDArray[np.floating], rate: int) -> bytes:
    """A sound (channels, n) or (n,) in [-1, 1], louder samples clipped, at `rate` samples a second; the same bytes everywhere."""
    channels = np.atleast_2d(samples)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((channels.T.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
    return buffer.getvalue()


def write_wav(path: Path, samples: NDArray[np.floating], rate: int) -> Path:
    """Write a sound; under another name first, so that no reader sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as unfinished:
        unfinished.write_bytes(wav_bytes(samples, rate))
    return path
