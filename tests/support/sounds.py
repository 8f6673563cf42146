"""Sounds that tests write: tones as .wav files, and as the sound of .mp4 files."""

import struct
import wave
from pathlib import Path

import av
import numpy as np

from mmrl.core.samples import Audio


def tone(seconds: float, hz: float = 440.0, rate: int = 16_000, start: float = 0.0) -> np.ndarray:
    """Half as loud as can be from `start` on, silent before."""
    times = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * np.pi * hz * times) * (times >= start)).astype(np.float32)


def write_wav(path: Path, channels: list[np.ndarray], rate: int = 16_000) -> Audio:
    """A file of 16 bits with these channels."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.stack(channels, 1) * 32767).round().astype("<i2").tobytes())
    return Audio(str(path))


def write_floats(path: Path, samples: np.ndarray, rate: int = 16_000, **lies: int) -> Audio:
    """A .wav file of one channel of float32; `lies` replace fields of its head, by their names below."""
    body = samples.astype("<f4").tobytes()
    own = {"riff": 36 + len(body), "kind": 3, "channels": 1, "rate": rate, "a_second": 4 * rate, "block": 4, "bits": 32}
    riff, *rest, size = (own | {"data": len(body)} | lies).values()
    path.write_bytes(struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", riff, b"WAVE", b"fmt ", 16, *rest, b"data", size) + body)
    return Audio(str(path))


def write_clip_with_sound(path: Path, samples: np.ndarray | None, rate: int = 16_000, seconds: float = 2.0) -> Audio:
    """A grey clip of 5 frames a second with this sound in AAC, or without any."""
    with av.open(str(path), "w") as file:
        pictures = file.add_stream("libx264", rate=5)
        pictures.width = pictures.height = 32
        sound = None if samples is None else file.add_stream("aac", rate=rate, layout="mono")
        for _ in range(round(5 * seconds)):
            file.mux(pictures.encode(av.VideoFrame.from_ndarray(np.full((32, 32, 3), 99, np.uint8), format="rgb24")))
        file.mux(pictures.encode(None))
        if sound is not None and samples is not None:
            piece = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
            piece.sample_rate = rate
            file.mux(sound.encode(piece))
            file.mux(sound.encode(None))
    return Audio(str(path))
