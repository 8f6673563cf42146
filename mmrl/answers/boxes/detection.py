"""Measures of how well predicted boxes fit true ones. All boxes of one call must share one space."""

from collections.abc import Sequence
from typing import Literal, cast

import numpy as np

from mmrl.answers.boxes.box import Box, iou_matrix

COCO_THRESHOLDS: tuple[float, ...] = tuple(round(0.5 + 0.05 * i, 2) for i in range(10))
Ties = Literal["together", "order"]
"""How AP ranks boxes that all have the same score. together: one operating point, so that every false box costs precision.
order: as written, as COCO's tool does, so that false boxes after the right ones are free."""


def match(overlaps: np.ndarray, threshold: float = 0.0) -> list[float]:
    """The IoU of one-to-one pairs: as many as reach IoU > 0 and >= threshold, of those the largest sum.

    `overlaps` holds the IoU of every pair (predicted, true).
    """
    allowed = (overlaps > 0) & (overlaps >= threshold)
    # a further pair is worth more than all IoU together, so that the number of pairs comes first
    worth = np.where(allowed, 1 + overlaps / (1 + min(overlaps.shape)), 0.0)
    return [float(overlaps[i, j]) for i, j in best_pairs(worth) if allowed[i, j]]


def f1(predicted: Sequence[Box], truth: Sequence[Box], threshold: float = 0.5, labels: bool = False) -> float:
    """2 TP / (predicted + true), with pairs of IoU >= threshold as TP; 1 when both are empty."""
    overlaps = overlaps_of(predicted, truth, labels)
    return 2 * len(match(overlaps, threshold)) / sum(overlaps.shape) if sum(overlaps.shape) else 1.0


def mean_iou(predicted: Sequence[Box], truth: Sequence[Box], labels: bool = False) -> float:
    """Sum of matched IoU / max(predicted, true): a box without partner, on either side, counts 0; 1 when both are empty."""
    if not predicted and not truth:
        return 1.0
    return sum(match(overlaps_of(predicted, truth, labels))) / max(len(predicted), len(truth))


def mean_average_precision(predicted: Sequence[Box], truth: Sequence[Box], ties: Ties = "together") -> float:
    """AP over 101 recall points, averaged over COCO's thresholds and labels, in one picture; all boxes score alike.

    A label that only predictions use has AP 0, so that inventing objects is not free; 1 when both sides are empty.
    """
    if not predicted and not truth:
        return 1.0
    names = {box.label for box in (*predicted, *truth)}
    values: list[float] = []
    for name in names:
        some = [box for box in predicted if box.label == name]
        true = [box for box in truth if box.label == name]
        overlaps = iou_matrix(some, true)
        values.extend(average_precision(overlaps, threshold, ties) for threshold in COCO_THRESHOLDS)
    return sum(values) / len(values)


def point_in_box(point: tuple[float, float], box: Box) -> bool:
    """True if the point lies in the box or on its edge; both in one space."""
    x, y = point
    return box.x1 <= x <= box.x2 and box.y1 <= y <= box.y2


def average_precision(overlaps: np.ndarray, threshold: float, ties: Ties = "together") -> float:
    """AP over 101 recall points, from the IoU of every pair (predicted, true); 0 where either side is empty."""
    num_predicted, num_true = overlaps.shape
    if not num_predicted or not num_true:
        return 0.0
    if ties == "together":
        num_right = len(match(overlaps, threshold))
        recall, precision = np.array([num_right / num_true]), np.array([num_right / num_predicted])
    else:
        right = np.cumsum(_greedy_hits(overlaps, threshold))
        recall, precision = right / num_true, right / np.arange(1.0, num_predicted + 1)
    best_from = np.maximum.accumulate(precision[::-1])[::-1]
    # recall 0.3 computed as 3 / 10 must reach the point 0.3 computed as 30 / 100
    places = np.searchsorted(recall + 1e-12, np.linspace(0, 1, 101))
    return float(np.append(best_from, 0.0)[places].mean())


def _greedy_hits(overlaps: np.ndarray, threshold: float) -> list[bool]:
    """COCO's matching: in the order written, each predicted box takes the best true box still free."""
    free, hits = np.ones(overlaps.shape[1], dtype=bool), list[bool]()
    for row in overlaps:
        best = int(np.where(free, row, -1.0).argmax())
        hit = bool(free[best] and row[best] >= threshold)
        free[best] &= not hit
        hits.append(hit)
    return hits


def best_pairs(worth: np.ndarray) -> list[tuple[int, int]]:
    """Rows and columns paired so that the sum of worth is largest."""
    from scipy.optimize import linear_sum_assignment  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType] - no types

    rows, columns = cast(tuple[np.ndarray, np.ndarray], linear_sum_assignment(worth, maximize=True))
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def overlaps_of(predicted: Sequence[Box], truth: Sequence[Box], labels: bool) -> np.ndarray:
    """IoU of every pair (predicted, true); with `labels` 0 for those of different labels."""
    overlaps = iou_matrix(predicted, truth)
    if labels:
        same = [p.label == t.label for p in predicted for t in truth]
        overlaps = np.where(np.array(same, dtype=bool).reshape(overlaps.shape), overlaps, 0.0)
    return overlaps
