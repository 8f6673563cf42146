"""`draw`: points, boxes and lines on a copy of a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageDraw

from mmrl.answers.boxes.box import Space, convert_point, extent
from mmrl.answers.calls import CallError
from mmrl.core.samples import MediaSize
from mmrl.data.files.pictures import upright
from mmrl.data.tools.canvas import sizes_of

Shape = Literal["point", "box", "line"]
_NUMBERS: dict[Shape, int] = {"point": 2, "box": 4, "line": 4}
MOST_MARKS = 100
_SLACK = 1e-6


@dataclass(frozen=True)
class Mark:
    """Something to draw: `Mark("line", (0, 500, 1000, 500))`.

    Raises CallError unless a point has two numbers and a box or line four.
    """

    shape: Shape
    numbers: tuple[float | int, ...]
    """x, y of a point; x1, y1, x2, y2 of others, in the model's own space."""

    def __post_init__(self) -> None:
        if len(self.numbers) != _NUMBERS[self.shape]:
            raise CallError(f"a {self.shape} has {_NUMBERS[self.shape]} numbers, not {len(self.numbers)}")


def draw(source: object, marks: Sequence[Mark], space: Space, size: MediaSize | None = None, colour: str = "red") -> Image.Image:
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
    pen = ImageDraw.Draw(picture)
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
