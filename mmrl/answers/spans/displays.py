"""How a video file asks for its frames to be shown: turned, mirrored, with pixels that are no squares, transparent."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.runtime.pictures import upright_rgb

AvObject = Any
"""A file, stream or frame of PyAV."""
Matrix = tuple[float, float, float, float]
"""(a, b, c, d): the pixel at (x, y) is shown at (a x + c y, b x + d y)."""
UPRIGHT: Matrix = (1.0, 0.0, 0.0, 1.0)
STRAIGHT = 0.01
"""Share of a turn's larger numbers below which the smaller ones are none."""
LONGEST_PIXEL = 10.0
"""Sides of a pixel, the longer by the shorter one, beyond which a head is damaged."""
WITH_ALPHA = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""Codecs that keep transparency beside their frames -> the decoder that reads it."""


def decoded(file: AvObject, stream: AvObject) -> Iterator[AvObject]:
    """The frames of a stream from where the file stands, with their transparency. Raises what FFmpeg does."""
    import av

    if not is_split(stream):
        yield from file.decode(stream)
        return
    name = WITH_ALPHA[stream.codec_context.name]
    if name not in av.codecs_available:
        raise ValueError(f"is transparent, which this FFmpeg cannot read of it without {name}: lay it on white")
    decoder: AvObject = av.CodecContext.create(name, "r")
    for packet in file.demux(stream):
        yield from decoder.decode(packet)


def is_split(stream: AvObject) -> bool:
    """Does a stream keep transparency beside its frames?"""
    return stream.metadata.get("alpha_mode") == "1" and stream.codec_context.name in WITH_ALPHA


def shown(frame: AvObject, stream: AvObject) -> NDArray[np.uint8]:
    """A frame as players show it, (height, width, 3), on white; ValueError, the end of a sentence on its file, for odd wishes."""
    a, b, c, d = turn = matrix_of(frame)
    if not is_straight(turn):
        raise ValueError(f"asks for a turn that is no quarter ({a:.3g}, {b:.3g}, {c:.3g}, {d:.3g}): turn its frames themselves")
    clear, width = is_transparent(frame), round(frame.width * pixel_width(stream))
    pixels = frame.to_ndarray(format="rgba" if clear else "rgb24")
    if clear or width != frame.width:
        picture = upright_rgb(Image.fromarray(pixels), lent=True)
        pixels = np.asarray(picture.resize((width, frame.height), Image.Resampling.BICUBIC))
    pixels, right, down = (pixels, a, d) if abs(a) > abs(b) else (pixels.swapaxes(0, 1), c, b)
    return np.ascontiguousarray(pixels[:: 1 if down > 0 else -1, :: 1 if right > 0 else -1])


def beyond_turns(path: str) -> str | None:
    """The end of a sentence on what a file asks for beyond quarter turns, found by its first frame; else None."""
    import av
    from av.error import FFmpegError

    try:
        with av.open(path) as file:
            stream = file.streams.video[0]
            frame = next(decoded(file, stream), None)
            if frame is None:
                return None
            a, b, c, d = turn = matrix_of(frame)
            odd = {
                "is transparent": is_transparent(frame),
                "has pixels that are no squares": pixel_width(stream) != 1,
                "is mirrored, or turned by an odd angle": a * d <= b * c or not is_straight(turn),
            }
            return next((what for what, holds in odd.items() if holds), None)
    except FFmpegError:
        return None


def matrix_of(frame: AvObject) -> Matrix:
    """How a frame is to be turned."""
    found = next((bytes(one) for one in frame.side_data if one.type.name == "DISPLAYMATRIX"), None)
    if found is None:
        return UPRIGHT
    a, b, _, c, d = (number / 65536 for number in np.frombuffer(found, "<i4", 5).tolist())
    return a, b, c, d


def is_straight(turn: Matrix) -> bool:
    """Is it a number of quarter turns, perhaps of a mirrored picture?"""
    small, large = sorted((max(map(abs, turn[::3])), max(map(abs, turn[1:3]))))
    return small <= STRAIGHT * large > 0


def pixel_width(stream: AvObject) -> float:
    """The width of a pixel by its height."""
    ratio = float(stream.sample_aspect_ratio or 1)
    if not 1 / LONGEST_PIXEL <= ratio <= LONGEST_PIXEL:
        raise ValueError(f"says that its pixels are {ratio:g} times as wide as high, which no camera's are: save it again")
    return ratio


def is_transparent(frame: AvObject) -> bool:
    return frame.format.has_palette or any(one.is_alpha for one in frame.format.components)
