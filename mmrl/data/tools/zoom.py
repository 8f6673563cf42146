"""`zoom`: a part of a picture, cut from its file, so that it is shown with all the detail that the file has."""

from math import ceil, floor

from PIL import Image

from mmrl.answers.boxes.box import Box, Space
from mmrl.answers.calls import CallError
from mmrl.core.samples import MediaSize
from mmrl.data.files.pictures import upright
from mmrl.data.tools.canvas import sizes_of

Number = float | int
Corners = tuple[Number, Number, Number, Number]
"""x1, y1, x2, y2."""
LEAST_SIDE = 28
"""Pixels: a smaller picture is less than one token of most models."""
MOST_ASPECT = 100.0
"""Processors refuse longer shapes."""


def zoom(source: object, corners: Corners, space: Space, size: MediaSize | None = None) -> Image.Image:
    """The part of a picture (a path, bytes or a PIL image) inside a box, in the pixels of its file.

    Args:
        corners: the box as the model wrote it, in its own space.
        size: how the model saw the picture; needed where the space is `resized`.

    Raises:
        CallError: no box, or `clip` refuses it.
    """
    picture = upright(source)
    seen = sizes_of(picture, space, size)
    try:
        box = Box(*corners, space).to("pixel", seen)
    except ValueError as error:
        raise CallError(f"{error}") from None
    left, top, right, bottom = clip(box.corners, *picture.size)
    return picture.crop((floor(left), floor(top), ceil(right), ceil(bottom)))


def clip(corners: Corners, width: int, height: int, least: Number = LEAST_SIDE, most_aspect: Number = MOST_ASPECT) -> Corners:
    """The part of a box, in pixels, that lies in a picture.

    Raises CallError where a side of it is shorter than `least` pixels, or one is more than `most_aspect` times the other. That is
    the zoom of DeepEyes (arXiv:2505.14362), which refuses sides of 30 pixels too. Its enlargement of small boxes can never run.
    """
    x1, y1, x2, y2 = corners
    left, top, right, bottom = max(0.0, x1), max(0.0, y1), min(float(width), x2), min(float(height), y2)
    short, long = sorted((right - left, bottom - top))
    if short <= 0:
        raise CallError("the box lies outside the picture")
    if short < least:
        raise CallError(f"the box is {short:.1f} pixels on its shorter side, and needs {least:.0f}: choose a larger one")
    if long > most_aspect * short:
        raise CallError(f"the box is {long / short:.0f} times as long as wide, and may be {most_aspect:g} times: choose another")
    return left, top, right, bottom
