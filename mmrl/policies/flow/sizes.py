"""Widths and heights of pictures: which ones a prompt asks for, and which ones a model draws."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from mmrl.core.types import Prompt

Size = tuple[int, int]
"""Width and height in pixels."""
COLUMNS = ("width", "height")
"""A prompt's own size, in pixels."""


def size_text(size: Size) -> str:
    return f"{size[0]} x {size[1]}"


def own_size(prompt: Prompt, grid: "Grid | None" = None) -> Size | None:
    """The size in a prompt's columns `width` and `height`; None: it names none. ValueError for one that cannot be drawn."""
    sides = {name: prompt.columns[name] for name in COLUMNS if prompt.columns.get(name) is not None}
    if not sides:
        return None
    if len(sides) == 1:
        (given,) = sides
        other = COLUMNS[1 - COLUMNS.index(given)]
        raise ValueError(
            f"prompt {prompt.id!r} has a {given} ({sides[given]!r}) and no {other}: give both columns in pixels, or neither to "
            "draw it at policy.width x policy.height"
        )
    for name, side in sides.items():
        if not isinstance(side, int) or isinstance(side, bool) or side < 1:
            raise ValueError(
                f"the column {name} of prompt {prompt.id!r} is {side!r}: give whole pixels above 0, such as 512, as a number"
            )
    size = sides["width"], sides["height"]
    if grid is not None:
        grid.refuse(size, f"prompt {prompt.id!r}")
    return size


@dataclass(frozen=True)
class Grid:
    """The sizes that a model draws: sides in multiples of `step` pixels, up to `most`."""

    step: int
    most: int | None = None

    def __str__(self) -> str:
        return f"multiples of {self.step} pixels" + ("" if self.most is None else f", at most {self.most} a side")

    def sides(self, side: int) -> list[int]:
        """The nearest sides that fit, smaller ones first: the side itself, or those below and above it."""
        below = side // self.step * self.step
        most = max(self.step, below + self.step if self.most is None else self.most // self.step * self.step)
        return sorted({min(max(near, self.step), most) for near in ((below,) if below == side else (below, below + self.step))})

    def fits(self, size: Size) -> bool:
        return all(self.sides(side) == [side] for side in size)

    def nearest(self, size: Size) -> Sequence[Size]:
        """The two sizes nearest to one that does not fit, or the one there is."""
        found = product(self.sides(size[0]), self.sides(size[1]))
        return sorted(found, key=lambda near: sum(abs(a - b) for a, b in zip(near, size, strict=True)))[:2]

    def refuse_setting(self, name: str, side: int) -> None:
        """Raise ValueError for a side of the policy's settings that does not fit."""
        fitting = self.sides(side)
        if fitting == [side]:
            return
        far = self.most is not None and side > self.most
        what = f"at most {self.most} pixels a side" if far else f"multiples of {self.step} pixels"
        raise ValueError(f"{name} is {side}, but this model draws {what}: set it to {' or '.join(map(str, fitting))}")

    def refuse(self, size: Size, who: str) -> None:
        """Raise ValueError for a prompt's size that does not fit; `who` asks for it."""
        if not self.fits(size):
            near = " or ".join(map(size_text, self.nearest(size)))
            raise ValueError(f"{who} asks for {size_text(size)} pixels, but this model draws {self}: take {near}")
