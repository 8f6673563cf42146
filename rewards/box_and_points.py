"""A box and two points inside it, as JSON behind a thought: the sum of five conditions.

    r = [format of thought and answer] + [JSON with bbox, points_1, points_2] + [IoU > iou]
        + [both points in the box, on average nearer than `points` pixels to the true ones] + [mean |corner - true one| < box_l1]

The points may come in either order. IoU counts the last pixel. Numbers are compared as they are written: show pictures at the
size that boxes and points of the data are in. PixelThink multiplies this by what the answer's length allows (LengthBudget).

Modality: text
Range: [0, 5]
Source: PixelThink, arXiv:2505.23727, as in Seg-Zero
Licence: own code Apache-2.0
"""

import re
from dataclasses import dataclass
from math import dist
from typing import Any

from mmrl import Box, Group, Need, Prompt, Sample, Scored
from mmrl.answers.block import answer_object, opened_text
from mmrl.runtime.ranges import Positive, Share, check_ranges, is_finite, is_number

FORM = re.compile(r"\s*<think>.*?</think>\s*<answer>.*?</answer>\s*", re.DOTALL)
SIZES = {"bbox": 4, "points_1": 2, "points_2": 2}


def _truth(prompt: Prompt, reward: Any, output: str) -> object:
    points: Any = prompt.columns.get(reward.column)
    if prompt.answer is None:
        return None
    if not isinstance(prompt.answer, Box) or len(points or ()) != 2 or not all(_numbers(point, 2) for point in points):
        raise ValueError(f"prompt {prompt.id!r} needs a Box as answer and two points [x, y] in the column {reward.column!r}")
    return prompt.answer.corners, [tuple(map(float, point)) for point in points]


def _numbers(found: object, count: int) -> bool:
    known = isinstance(found, list | tuple) and len(found) == count
    return known and all(is_number(x) and is_finite(x) for x in found)  # type: ignore[union-attr] - `known` says so


@dataclass(frozen=True)
class BoxAndPoints:
    """Five conditions, one each; text without readable JSON meets the first at most."""

    column: str = "points"
    """The column with the two true points."""
    iou: Share = 0.5
    """The overlap from which the box is right."""
    points: Positive = 100.0
    """In pixels."""
    box_l1: Positive = 10.0
    """In pixels, the mean over the corners."""
    needs = Need("a box as answer, and two points", _truth)

    __post_init__ = check_ranges

    def __call__(self, group: Group) -> list[Scored | None]:
        truth: Any = _truth(group.prompt, self, "text")
        return [None if truth is None else self._score(sample, *truth) for sample in group.samples]

    def _score(self, sample: Sample, corners: Any, points: Any) -> Scored:
        text = opened_text(sample)
        said: dict[str, Any] = answer_object(text)
        found = {name: said[name] for name, size in SIZES.items() if _numbers(said.get(name), size)}
        box, own = found.get("bbox"), [found[name] for name in ("points_1", "points_2") if name in found]
        inside = len(own) == 2 and box is not None and all(box[0] <= x <= box[2] and box[1] <= y <= box[3] for x, y in own)
        near = inside and min(dist(own[0], a) + dist(own[1], b) for a, b in (points, points[::-1])) / 2 < self.points
        parts = {
            "form": FORM.fullmatch(text) is not None,
            "json": len(found) == len(SIZES),
            "iou": box is not None and _overlap(box, corners) > self.iou,
            "points": near,
            "box": box is not None and sum(abs(a - b) for a, b in zip(box, corners, strict=True)) / 4 < self.box_l1,
        }
        values = {name: float(one) for name, one in parts.items()}
        return Scored(sum(values.values()), values | {"unparsed": float(not found)})


def _overlap(one: Any, other: Any) -> float:
    """IoU of boxes whose last pixels count."""
    width, height = (min(one[i + 2], other[i + 2]) - max(one[i], other[i]) + 1 for i in (0, 1))
    inside = max(0.0, width) * max(0.0, height)
    areas = sum((box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (one, other))
    return inside / max(areas - inside, 1.0)
