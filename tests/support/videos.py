"""Clips whose every frame carries its number as eight squares that survive compression, at any frame rate."""

import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

SIDE = 32
"""The side of a square in pixels; bit b stands in the middle row of the b-th column."""
WIDTH, HEIGHT = 8 * SIDE, 3 * SIDE


def numbered(number: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """A grey picture with the bits of `number` in black and white."""
    picture = np.full((height, width, 3), 128, np.uint8)
    for bit in range(8):
        left, right = bit * width // 8, (bit + 1) * width // 8
        picture[height // 3 : 2 * height // 3, left:right] = 255 if number >> bit & 1 else 0
    return picture


def read_number(picture: np.ndarray) -> int:
    """The number of a picture (height, width, ...), of whatever size."""
    height, width = picture.shape[:2]
    middle = picture[height // 2].reshape(width, -1).mean(1)
    centers = [round((bit + 0.5) * width / 8) for bit in range(8)]
    low, high = float(picture.min()), float(picture.max())
    return sum(int(middle[x] > (low + high) / 2) << bit for bit, x in enumerate(centers))


def write_video(
    path: Path,
    times: Sequence[float],
    codec: str = "libx264",
    size: tuple[int, int] = (WIDTH, HEIGHT),
    b_frames: int = 2,
    sound: bool = False,
    aspect: Fraction | None = None,
) -> str:
    """A file whose frame i is `numbered(i)` and appears at times[i] seconds (to the millisecond).

    `aspect` is the width of a pixel by its height.
    """
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream(codec, rate=25)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        if codec == "libx264":
            stream.options = {"crf": "18", "bf": str(b_frames), "g": "8", "threads": "1"}
        noise: Any = file.add_stream("aac", rate=16000) if sound else None
        for i, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(numbered(i, *size), format="rgb24")
            frame.pts, frame.time_base = round(1000 * time), Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
        if noise is not None:
            hush = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            hush.rate = 16000
            file.mux(noise.encode(hush))
            file.mux(noise.encode(None))
    return str(path)


def even(number: int, fps: float = 25.0) -> list[float]:
    return [i / fps for i in range(number)]


def uneven(number: int, seed: int = 0) -> list[float]:
    """Gaps between 20 ms and 0.7 s."""
    gaps = np.random.RandomState(seed).choice([0.02, 0.04, 0.1, 0.3, 0.7], number - 1)
    return [0.0, *np.cumsum(gaps).round(3).tolist()]


def write_transparent(path: Path, codec: str, colours: str) -> str:
    """Six frames with a red square on what is transparent, whose hidden colour is black."""
    picture = np.zeros((48, 64, 4), np.uint8)
    picture[8:24, 8:24] = (255, 0, 0, 255)
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, colours
        for i in range(6):
            frame = av.VideoFrame.from_ndarray(picture, format="rgba").reformat(format=colours)
            frame.pts = i
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return str(path)


def turn(source: str, path: Path, angle: int | tuple[float, float, float, float]) -> str:
    """A copy of an mp4 file that asks to be shown turned, as phones write them: only the matrix of its track differs.

    `angle` is in degrees, or the matrix (a, b, c, d): the pixel at (x, y) is shown at (a x + c y, b x + d y).
    """
    matrices = {90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}
    a, b, c, d = (round(65536 * x) for x in (matrices[angle] if isinstance(angle, int) else angle))
    content = bytearray(Path(source).read_bytes())
    # version and flags (4 bytes), five times and numbers (20), reserved (8), layer to volume (8)
    place = content.index(b"tkhd") + 4 + 40
    content[place : place + 24] = struct.pack(">6i", a, b, 0, c, d, 0)
    path.write_bytes(content)
    return str(path)
