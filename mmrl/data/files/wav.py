"""Sounds as the bytes of .wav files, 16 bits a sample, by the standard library."""

import io
import wave

import numpy as np
from numpy.typing import NDArray


def wav_bytes(samples: NDArray[np.float32], rate: int) -> bytes:
    """A sound (channels, n) or (n,) in [-1, 1], louder samples clipped, at `rate` samples a second; the same bytes everywhere."""
    channels = np.atleast_2d(samples)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((channels.T.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
    return buffer.getvalue()
