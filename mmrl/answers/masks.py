"""Masks as COCO writes them: runs, or polygons on a picture of known size.

What a model writes is checked here before it reaches pycocotools, whose C code trusts it.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from types import ModuleType
from typing import cast

Size = tuple[int, int]
"""Height and width."""
Runs = Mapping[str, object]
"""A mask as pycocotools has it."""


class NotAMaskError(ValueError):
    """The text says why."""


def read_mask(mask: object, size: Size | None, tools: ModuleType) -> tuple[Size, Runs]:
    """A mask's size, and its run lengths.

    Args:
        mask: {"size": [height, width], "counts": COCO's text or a list}, or {"polygon": [[x1, y1, x2, y2, ...], ...]}.
        size: of the picture, which polygons are drawn on.
        tools: pycocotools.mask.

    Raises:
        NotAMaskError: for anything else, and runs that do not add up to the size.
    """
    if not isinstance(mask, Mapping):
        raise NotAMaskError(f"{mask!r:.100} is no table with size and counts, or polygon")
    table = cast(Mapping[str, object], mask)
    if "polygon" in table:
        if size is None:
            raise NotAMaskError("polygons need the picture's size: give the sample its media_sizes")
        polygons = [_polygon(points, size) for points in items_of(table["polygon"])]
        if not polygons:
            raise NotAMaskError("polygon is no list of lists of coordinates")
        return size, tools.merge(tools.frPyObjects(polygons, *size))
    height, width = found = _size(table.get("size"))
    counts = table.get("counts")
    packed = counts.encode("latin-1", "replace") if isinstance(counts, str) else counts
    runs = _runs(packed) if isinstance(packed, bytes) else items_of(packed)
    whole = [run for run in runs if isinstance(run, int) and not isinstance(run, bool) and run >= 0]
    if len(whole) < len(runs) or sum(whole) != height * width:
        raise NotAMaskError(f"its runs do not add up to {height} x {width} pixels")
    return found, tools.frPyObjects({"size": [height, width], "counts": whole}, height, width)


def items_of(value: object) -> Sequence[object]:
    """The items of a list or tuple; none of anything else."""
    return cast(Sequence[object], value) if isinstance(value, list | tuple) else ()


def _size(value: object) -> Size:
    sides = [side for side in items_of(value) if isinstance(side, int) and 0 < side < 2**15]
    if not (len(sides) == len(items_of(value)) == 2):
        raise NotAMaskError(f"size is {value!r:.100}, not [height, width]")
    return int(sides[0]), int(sides[1])


def _runs(packed: bytes) -> list[int]:
    """COCO's compressed counts: groups of five bits, the sixth says that more follow; from the fourth on the difference to
    the last but one.
    """
    runs: list[int] = []
    value, shift = 0, 0
    for byte in packed:
        bits = byte - 48
        if not 0 <= bits < 64 or shift > 30:
            raise NotAMaskError("its counts are not COCO's")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        value -= (bits & 16) and 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value, shift = 0, 0
    if shift:
        raise NotAMaskError("its counts end in the middle of a number")
    return runs


def _polygon(points: object, size: Size) -> list[float]:
    """Coordinates, moved to the picture's border where they lie outside: far ones would cost memory."""
    given = items_of(points)
    numbers = [float(x) for x in given if isinstance(x, int | float) and not isinstance(x, bool) and isfinite(x)]
    if len(numbers) < len(given) or len(numbers) < 6 or len(numbers) % 2:
        raise NotAMaskError("a polygon is a flat list of at least three points x, y")
    return [min(max(x, 0.0), float(size[1 - i % 2])) for i, x in enumerate(numbers)]
