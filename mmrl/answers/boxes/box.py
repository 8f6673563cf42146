"""Typed boxes, the spaces they are written in, and their overlap."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mmrl.core.samples import MediaSize

Space = Literal["pixel", "resized", "norm1000", "norm1", "norm1000_yx"]
"""pixel: of the picture's file. resized: of the picture as the model saw it. norm1000, norm1: shares of width and height.
norm1000_yx: norm1000 where texts write y before x; a Box has x first in every space."""
Corners = tuple[float, float, float, float]
SPACES: tuple[Space, ...] = get_args(Space)
_SLACK = 1e-6
"""Share of a picture's side by which rounding of floats may push a box over the edge."""
_MOST = 1e12
"""Beyond any picture; products of larger coordinates could overflow."""


def extent(space: Space, size: MediaSize | None) -> tuple[float, float]:
    """The largest x and y that `space` has on a picture of this size: `("norm1000", None) -> (1000.0, 1000.0)`.

    Raises ValueError if the space counts pixels and the size is None.
    """
    if space in ("norm1000", "norm1000_yx"):
        return 1000.0, 1000.0
    if space == "norm1":
        return 1.0, 1.0
    if size is None:
        raise ValueError(f"space {space!r} needs the picture's size: give the sample its media_sizes")
    if space == "pixel":
        return float(size.width), float(size.height)
    return float(size.seen_width), float(size.seen_height)


@dataclass(frozen=True)
class Box:
    """A rectangle in continuous coordinates, [x1, x2] x [y1, y2]: `Box(10, 20, 50, 80, "pixel", "cat")`.

    Raises ValueError for a number that is not finite or beyond 1e12, a box without area, or an unknown space.
    """

    x1: float | int
    y1: float | int
    x2: float | int
    y2: float | int
    space: Space = "pixel"
    label: str | None = None

    def __post_init__(self) -> None:
        if self.space not in SPACES:
            raise ValueError(f"box space {self.space!r} is unknown; choose one of {', '.join(SPACES)}")
        for name in ("x1", "y1", "x2", "y2"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if not all(isfinite(x) for x in self.corners):
            raise ValueError(f"{self} has a coordinate that is not finite")
        if any(abs(x) > _MOST for x in self.corners):
            raise ValueError(f"{self} has a coordinate beyond {_MOST:g}, which no picture has")
        # sides of 1e-200 multiply to nothing
        if self.x2 <= self.x1 or self.y2 <= self.y1 or self.area == 0:
            raise ValueError(f"{self} has no area: it needs x2 > x1 and y2 > y1")

    def __str__(self) -> str:
        label = "" if self.label is None else f" {self.label!r}"
        return f"box [{self.x1:g}, {self.y1:g}, {self.x2:g}, {self.y2:g}] ({self.space}){label}"

    @property
    def corners(self) -> tuple[float, float, float, float]:
        """(x1, y1, x2, y2) in the box's own space."""
        return self.x1, self.y1, self.x2, self.y2

    @property
    def center(self) -> tuple[float, float]:
        return (self.x1 + self.x2) / 2, (self.y1 + self.y2) / 2

    @property
    def area(self) -> float:
        return (self.x2 - self.x1) * (self.y2 - self.y1)

    def to(self, space: Space, size: MediaSize | None) -> "Box":
        """The same rectangle written in another space; norm1000 and norm1 need no size to become one another."""
        if space == self.space:
            return self
        (old_width, old_height), (width, height) = extent(self.space, size), extent(space, size)
        x1, x2 = self.x1 * width / old_width, self.x2 * width / old_width
        y1, y2 = self.y1 * height / old_height, self.y2 * height / old_height
        return replace(self, x1=x1, y1=y1, x2=x2, y2=y2, space=space)

    def iou(self, other: "Box") -> float:
        """|self n other| / |self u other|, in [0, 1]. Raises ValueError for a box in another space: convert it with `to`."""
        return iou(self, other)

    def rounded(self, digits: int = 0) -> "Box":
        """Coordinates rounded to n decimals; a side that would vanish keeps one unit of the last decimal."""
        unit = 10.0**-digits
        x1, y1, x2, y2 = (round(x, digits) for x in self.corners)
        return replace(self, x1=x1, y1=y1, x2=max(x2, round(x1 + unit, digits)), y2=max(y2, round(y1 + unit, digits)))


def as_written(corners: Corners, space: Space) -> Corners:
    """(x1, y1, x2, y2) in the order in which texts of this space hold them, and back."""
    x1, y1, x2, y2 = corners
    return (y1, x1, y2, x2) if space == "norm1000_yx" else corners


def convert_point(point: tuple[float, float], space: Space, target: Space, size: MediaSize | None) -> tuple[float, float]:
    """The point (x, y), written in `space`, as `target` writes it; ValueError if one counts pixels and the size is None."""
    if space == target:
        return point
    (old_width, old_height), (width, height) = extent(space, size), extent(target, size)
    return point[0] * width / old_width, point[1] * height / old_height


def is_inside(box: Box, size: MediaSize | None) -> bool:
    """True if no edge of the box lies beyond the picture."""
    width, height = extent(box.space, size)
    x, y = width * _SLACK, height * _SLACK
    return box.x1 >= -x and box.y1 >= -y and box.x2 <= width + x and box.y2 <= height + y


def check_inside(box: Box, size: MediaSize | None) -> None:
    """Raise ValueError, naming the box, if ground truth lies outside its space."""
    if not is_inside(box, size):
        width, height = extent(box.space, size)
        raise ValueError(f"{box} lies outside its space, which is {width:g} wide and {height:g} high: fix the box or its space")


def iou(a: Box, b: Box) -> float:
    """|a n b| / |a u b|, in [0, 1]. Edges that only touch overlap 0; a box with itself 1, however small."""
    overlap = _intersection(a, b)
    return overlap / (a.area + b.area - overlap)


def giou(a: Box, b: Box) -> float:
    """IoU - |hull \\ (a u b)| / |hull|, in (-1, 1] (arXiv 1902.09630): negative and graded where boxes miss each other."""
    overlap = _intersection(a, b)
    union = a.area + b.area - overlap
    hull = (max(a.x2, b.x2) - min(a.x1, b.x1)) * (max(a.y2, b.y2) - min(a.y1, b.y1))
    return overlap / union - (hull - union) / hull


def iou_matrix(rows: Sequence[Box], columns: Sequence[Box]) -> NDArray[np.float64]:
    """IoU of every pair (rows, columns); all boxes must share one space."""
    for box in (*rows, *columns):
        _same_space((*rows, *columns)[0], box)
    a, b = (np.array([box.corners for box in boxes], np.float64).reshape(-1, 4) for boxes in (rows, columns))
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    overlap = sides.clip(0.0).prod(-1)
    areas = ((one[:, 2:] - one[:, :2]).prod(-1) for one in (a, b))
    return overlap / (np.add.outer(*areas) - overlap)


def _intersection(a: Box, b: Box) -> float:
    _same_space(a, b)
    width = min(a.x2, b.x2) - max(a.x1, b.x1)
    height = min(a.y2, b.y2) - max(a.y1, b.y1)
    return max(width, 0.0) * max(height, 0.0)


def _same_space(a: Box, b: Box) -> None:
    if a.space != b.space:
        raise ValueError(f"{a} and {b} are in different spaces: convert one with .to(space, size)")
