import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.answers.boxes.detection import COCO_THRESHOLDS
from mmrl.answers.spans.detection import key_frame_hit, mean_average_precision
from mmrl.answers.spans.interval import Interval, temporal_iou

TICKS = st.integers(0, 20)
SPANS = st.tuples(TICKS, TICKS).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: Interval(min(pair), max(pair)))


def slow_average_precision(predicted, truth, threshold):
    """Ranked as written: every prediction takes the best true span still free; the envelope is read at 101 recalls."""
    free, points, right = list(truth), [], 0
    for rank, span in enumerate(predicted, start=1):
        best = max(free, key=lambda other: temporal_iou(span, other), default=None)
        if best is not None and temporal_iou(span, best) >= threshold:
            free.remove(best)
            right += 1
        points.append((right / len(truth), right / rank))
    total = 0.0
    for recall in np.linspace(0, 1, 101):
        total += max((precision for reached, precision in points if reached >= recall - 1e-12), default=0.0)
    return total / 101


@given(st.lists(SPANS, min_size=1, max_size=6), st.lists(SPANS, min_size=1, max_size=4))
def test_mean_average_precision_is_the_slow_one(predicted, truth):
    slow = np.mean([slow_average_precision(predicted, truth, threshold) for threshold in COCO_THRESHOLDS])
    assert mean_average_precision(predicted, truth) == pytest.approx(slow)
    assert mean_average_precision(predicted, truth, ties="together") <= mean_average_precision(truth, truth) == 1


def test_average_precision_by_hand():
    truth = [Interval(0, 10), Interval(20, 30)]
    # right, wrong, right: precision 1 up to recall 1/2 (51 of 101 points), then 2/3 (50)
    found = mean_average_precision([truth[0], Interval(50, 60), truth[1]], truth)
    assert found == pytest.approx((51 + 50 * 2 / 3) / 101)
    # all alike: two of three right, at recall 1
    assert mean_average_precision([truth[0], Interval(50, 60), truth[1]], truth, ties="together") == pytest.approx(2 / 3)
    assert (
        mean_average_precision([], []) == 1 and mean_average_precision([], truth) == 0 and mean_average_precision(truth, []) == 0
    )


def test_key_frames():
    truth = [Interval(0, 2), Interval(5, 6)]
    assert key_frame_hit([1.0, 2.0, 4.0, 6.0], truth) == 0.75 and key_frame_hit([], truth) == 0 == key_frame_hit([1.0], [])
