"""Measures of how well predicted spans of time fit true ones. All spans of one call must share one unit."""

from collections.abc import Sequence

import numpy as np

from mmrl.answers.boxes.detection import COCO_THRESHOLDS, Ties, average_precision
from mmrl.answers.spans.interval import Interval, merge_spans, temporal_iou


def mean_average_precision(predicted: Sequence[Interval], truth: Sequence[Interval], ties: Ties = "order") -> float:
    """AP over 101 recall points, averaged over COCO's thresholds of IoU, in one clip; 1 when both sides are empty.

    Spans rank as they are written (`order`), as moment retrieval has it; `together` lets every false span cost precision.
    """
    if not predicted and not truth:
        return 1.0
    overlaps = iou_matrix(predicted, truth)
    return sum(average_precision(overlaps, threshold, ties) for threshold in COCO_THRESHOLDS) / len(COCO_THRESHOLDS)


def key_frame_hit(times: Sequence[float], truth: Sequence[Interval]) -> float:
    """Share of the named times that lie in a true span, borders included; 0 if none is named."""
    if not times:
        return 0.0
    spans = merge_spans(truth)
    return sum(any(span.contains(time) for span in spans) for time in times) / len(times)


def iou_matrix(rows: Sequence[Interval], columns: Sequence[Interval]) -> np.ndarray:
    """IoU of every pair, (rows, columns)."""
    found = [[temporal_iou(row, column) for column in columns] for row in rows]
    return np.array(found, dtype=np.float64).reshape(len(rows), len(columns))
