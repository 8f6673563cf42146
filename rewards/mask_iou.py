"""IoU of the predicted mask with the true one.

    r = |a n b| / |a u b| in pixels; 1 if both are empty

Masks are COCO's run lengths, {"size": [height, width], "counts": text or list}, column by column as everywhere in COCO, or
polygons, {"polygon": [[x1, y1, x2, y2, ...], ...]} in pixels of the picture, whose size must be known. A completion holds its
mask as JSON in the last answer tag (fenced or bare). Runs that do not add up to the size are no mask: what a model writes never
reaches pycocotools' C code unchecked. Text without a mask, or one of another size, scores 0 and is counted (unparsed,
wrong_size).

Modality: text
Needs: pip install "mmrl[rewards]" (pycocotools), prompts whose answer is such a mask
Range: [0, 1]
Source: cocodataset/cocoapi
Licence: own code Apache-2.0; pycocotools BSD-2-Clause
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from mmrl import Group, Sample, Scored
from mmrl.answers.block import Template, answer_block, keeps_format, strip_fence
from mmrl.answers.boxes.attempts import completion_text
from mmrl.serving.files import import_package

INSTALL = 'pip install "mmrl[rewards]"'
Size = tuple[int, int]
"""Height and width."""


class _NotAMaskError(ValueError):
    """The text says why."""


@dataclass(frozen=True)
class MaskIou:
    """IoU of masks. A prompt without an answer gets None; an answer that is no mask is an error."""

    template: Template | None = None
    """If set, text that breaks this template scores 0."""

    pointwise = True

    def __call__(self, group: Group) -> list[float | Scored | None]:
        if group.prompt.answer is None:
            return [None] * len(group.samples)
        tools = import_package("pycocotools.mask", INSTALL)
        sizes = {(size.height, size.width) for sample in group.samples for size in sample.media_sizes[:1]}
        try:
            size, runs = _read(group.prompt.answer, min(sizes, default=None), tools)
        except _NotAMaskError as error:
            raise ValueError(f"the answer of prompt {group.prompt.id!r} is no mask: {error}") from None
        return [self._score(completion_text(group.prompt, sample), sample, size, runs, tools) for sample in group.samples]

    def _score(self, text: str, sample: Sample, size: Size, truth: Any, tools: Any) -> Scored:
        if self.template is not None and not keeps_format(text, self.template):
            return _score_of(0.0, format=0.0)
        try:
            found, runs = _read(json.loads(strip_fence(answer_block(text))), size, tools)
        except (_NotAMaskError, ValueError, RecursionError):
            return _score_of(0.0, unparsed=1.0)
        if found != size:
            return _score_of(0.0, wrong_size=1.0)
        if not tools.area(runs) and not tools.area(truth):
            return _score_of(1.0)
        return _score_of(float(tools.iou([runs], [truth], [0])[0][0]))


def _read(mask: Any, size: Size | None, tools: Any) -> tuple[Size, Any]:
    """Size and pycocotools' run lengths.

    Args:
        size: of the picture, which polygons are drawn on.
    """
    if not isinstance(mask, Mapping):
        raise _NotAMaskError(f"{mask!r:.100} is no table with size and counts, or polygon")
    if "polygon" in mask:
        if size is None:
            raise _NotAMaskError("polygons need the picture's size: give the sample its media_sizes")
        polygons = [_polygon(points, size) for points in mask["polygon"]] if isinstance(mask["polygon"], list) else []
        if not polygons:
            raise _NotAMaskError("polygon is no list of lists of coordinates")
        return size, tools.merge(tools.frPyObjects(polygons, *size))
    height, width = found = _size(mask.get("size"))
    counts = mask.get("counts")
    packed = counts.encode("latin-1", "replace") if isinstance(counts, str) else counts
    runs: Any = _runs(packed) if isinstance(packed, bytes) else packed
    whole = isinstance(runs, list) and all(isinstance(run, int) and not isinstance(run, bool) and run >= 0 for run in runs)
    if not whole or sum(runs) != height * width:
        raise _NotAMaskError(f"its runs do not add up to {height} x {width} pixels")
    return found, tools.frPyObjects({"size": [height, width], "counts": runs}, height, width)


def _size(size: Any) -> Size:
    if not (isinstance(size, Sequence) and len(size) == 2 and all(isinstance(side, int) and 0 < side < 2**15 for side in size)):
        raise _NotAMaskError(f"size is {size!r:.100}, not [height, width]")
    return int(size[0]), int(size[1])


def _runs(packed: bytes) -> list[int]:
    """COCO's compressed counts: groups of five bits, the sixth says that more follow; from the fourth on the difference to
    the last but one.
    """
    runs: list[int] = []
    value, shift = 0, 0
    for byte in packed:
        bits = byte - 48
        if not 0 <= bits < 64 or shift > 30:
            raise _NotAMaskError("its counts are not COCO's")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        value -= (bits & 16) and 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value, shift = 0, 0
    if shift:
        raise _NotAMaskError("its counts end in the middle of a number")
    return runs


def _polygon(points: Any, size: Size) -> list[float]:
    """Coordinates, moved to the picture's border where they lie outside: far ones would cost memory."""
    numbers = points if isinstance(points, list) else []
    good = all(isinstance(x, int | float) and not isinstance(x, bool) and isfinite(x) for x in numbers)
    if not good or len(numbers) < 6 or len(numbers) % 2:
        raise _NotAMaskError("a polygon is a flat list of at least three points x, y")
    return [min(max(float(x), 0.0), float(size[1 - i % 2])) for i, x in enumerate(numbers)]


def _score_of(value: float, **parts: float) -> Scored:
    return Scored(value, {"unparsed": 0.0, "wrong_size": 0.0, **parts})
