"""`zoom`, `draw` and `frames`: a part of a picture with all its detail, marks on a copy, and what a clip shows at times."""

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil, floor
from typing import Literal, NamedTuple

from PIL import Image, ImageDraw

from mmrl.answers.boxes.box import Box, Space, convert_point, extent
from mmrl.answers.calls import CallError
from mmrl.answers.spans.timelines import CLOSE, MissingError, Timeline, by_pyav, read_timeline, sequence
from mmrl.core.samples import MediaSize, Video
from mmrl.data.files.pictures import upright

Number = float | int
Corners = tuple[Number, Number, Number, Number]
"""x1, y1, x2, y2."""
LEAST_SIDE = 28
"""Pixels: a smaller picture is less than one token of most models."""
MOST_ASPECT = 100.0
"""Processors refuse longer shapes."""
Shape = Literal["point", "box", "line"]
MOST_MARKS = 100
_SLACK = 1e-6


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

    Raises CallError where a side of it is shorter than `least` pixels, or one is more than `most_aspect` times the other, as in
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


def sizes_of(picture: Image.Image, space: Space, size: MediaSize | None) -> MediaSize:
    """The picture's size in its file, and as the model saw it. Raises ValueError where the space needs what is missing."""
    if space == "resized" and size is None:
        raise ValueError("boxes in resized pixels need the picture's size as the model saw it: give the tool its MediaSize")
    return MediaSize(*picture.size, *(picture.size if size is None else (size.seen_width, size.seen_height)))


class Mark(NamedTuple):
    """Something to draw: `Mark("line", (0, 500, 1000, 500))`."""

    shape: Shape
    numbers: tuple[Number, ...]
    """x, y of a point; x1, y1, x2, y2 of others, in the model's own space."""


def draw(source: object, marks: Sequence[Mark], space: Space, size: MediaSize | None = None) -> Image.Image:
    """A copy of a picture (a path, bytes or a PIL image) in the size of its file, with marks on it.

    Args:
        size: how the model saw the picture; needed where the space is `resized`.

    Raises:
        CallError: a mark lies outside the picture, or there are more than 100.
    """
    if len(marks) > MOST_MARKS:
        raise CallError(f"{len(marks)} marks are to be drawn, and may be {MOST_MARKS}")
    picture = upright(source)
    seen = sizes_of(picture, space, size)
    pen, colour = ImageDraw.Draw(picture), "red"
    width = max(2, round(min(picture.size) / 150))
    for mark in marks:
        points = [inside((float(x), float(y)), space, seen) for x, y in zip(mark.numbers[::2], mark.numbers[1::2], strict=True)]
        if mark.shape == "point":
            [(x, y)] = points
            pen.ellipse((x - 2 * width, y - 2 * width, x + 2 * width, y + 2 * width), fill=colour, outline="white")
        elif mark.shape == "line":
            pen.line(points, fill=colour, width=width)
        else:
            (x1, y1), (x2, y2) = points
            pen.rectangle((min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)), outline=colour, width=width)
    return picture


def inside(point: tuple[float, float], space: Space, size: MediaSize) -> tuple[float, float]:
    """The point in pixels of the file. Raises CallError if it lies outside the picture, or is no number."""
    width, height = extent(space, size)
    if not all(-_SLACK * most <= x <= (1 + _SLACK) * most for x, most in zip(point, (width, height), strict=True)):
        raise CallError(f"({point[0]:g}, {point[1]:g}) lies outside the picture, which is {width:g} wide and {height:g} high")
    return convert_point(point, space, "pixel", size)


MOST_FRAMES = 8


def frames(video: Video, times: Sequence[float | int]) -> list[tuple[float, Image.Image]]:
    """For each time the frame that is on the screen: when it appeared, and its picture in the size of the file.

    Times are in seconds from the beginning of the part that is shown. A view's changes (`shuffle`, `noise`) are left out.

    Raises:
        CallError: no time, more than 8, or one outside the part that is shown.
        FileNotFoundError, ValueError: the clip itself cannot be read.
    """
    if not 0 < len(times) <= MOST_FRAMES:
        raise CallError(f"{len(times)} times are asked for: ask for 1 to {MOST_FRAMES}")
    rate = video.fps or 1.0
    is_file = isinstance(video.source, str)
    timeline = read_timeline(str(video.source)) if is_file else sequence(len(video.source), rate)
    start, end = timeline.part(video.start, video.end)
    shown = timeline.inside(start, end)
    if not all(-CLOSE <= time <= end - start + CLOSE for time in times):
        raise CallError(f"the clip lasts from 0 to {end - start:.2f} s, and a time outside of it is asked for")
    moments = [timeline.times[i] - start for i in shown]
    places = [max(0, bisect_right(moments, time + CLOSE) - 1) for time in times]
    numbers = sorted({shown[place] for place in places})
    pictures = dict(zip(numbers, decode(video, timeline, numbers), strict=True))
    return [(moments[place], pictures[shown[place]]) for place in places]


def decode(video: Video, timeline: Timeline, numbers: Sequence[int]) -> list[Image.Image]:
    """The frames with these ascending numbers."""
    if not isinstance(video.source, str):
        return [upright(video.source[i]) for i in numbers]
    try:
        return [Image.fromarray(piece[0]) for piece in by_pyav(video.source, timeline, numbers)]
    except (MissingError, ValueError) as error:
        raise ValueError(f"the video {video.source!r} cannot be decoded: {error}") from None
