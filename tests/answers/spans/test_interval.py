import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.answers.spans.interval import UNITS, Interval, merge_spans, temporal_iou, union_iou

TICKS = st.integers(0, 40)
SPANS = st.tuples(TICKS, TICKS).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: Interval(min(pair), max(pair)))


def ticks(spans):
    """True for every tick that some span covers."""
    found = np.zeros(41, bool)
    for span in spans:
        found[int(span.start) : int(span.end)] = True
    return found


def slow_iou(first, second):
    a, b = ticks(first), ticks(second)
    return (a & b).sum() / (a | b).sum()


@given(SPANS, SPANS)
def test_iou_counts_ticks(a, b):
    assert temporal_iou(a, b) == pytest.approx(slow_iou([a], [b]))
    assert temporal_iou(a, b) == temporal_iou(b, a) == pytest.approx(union_iou([a], [b]))
    assert temporal_iou(a, a) == 1


@given(st.lists(SPANS, min_size=1, max_size=6), st.lists(SPANS, min_size=1, max_size=6))
def test_union_iou_counts_ticks(first, second):
    assert union_iou(first, second) == pytest.approx(slow_iou(first, second))
    joined = merge_spans(first)
    assert (ticks(joined) == ticks(first)).all()
    assert all(a.end < b.start for a, b in pairwise(joined))


def test_union_iou_of_nothing():
    assert union_iou([], []) == 1 and union_iou([], [Interval(0, 1)]) == 0


@given(SPANS, st.sampled_from(UNITS), st.floats(41, 500), st.floats(0.1, 120))
def test_conversion_and_back(span, unit, duration, fps):
    there = span.to(unit, duration, fps)
    back = there.to("seconds", duration, fps)
    assert there.unit == unit and (back.start, back.end) == pytest.approx((span.start, span.end), rel=1e-9, abs=1e-9)


def test_conversion_by_hand():
    span = Interval(2, 5)
    assert span.to("frames", fps=2.0) == Interval(4, 10, "frames")
    assert span.to("norm", duration=20.0) == Interval(0.1, 0.25, "norm")
    assert Interval(4, 10, "frames").to("norm", 20.0, 2.0) == Interval(0.1, 0.25, "norm")
    assert Interval(0.1, 0.25, "norm").to("frames", 20.0, 2.0) == Interval(4, 10, "frames")
    assert Interval(4, 10, "frames").to("seconds", fps=2.0) == span


def test_conversion_needs_what_it_needs():
    with pytest.raises(ValueError, match="duration"):
        Interval(2, 5).to("norm", fps=2.0)
    with pytest.raises(ValueError, match="frame rate"):
        Interval(2, 5).to("frames", 20.0)
    with pytest.raises(ValueError, match="different units"):
        temporal_iou(Interval(2, 5), Interval(2, 5, "frames"))
    with pytest.raises(ValueError, match="different units"):
        union_iou([Interval(2, 5)], [Interval(2, 5, "frames")])


@pytest.mark.parametrize(("start", "end"), [(3, 3), (5, 2), (-1, 2), (0, math.inf), (math.nan, 1)])
def test_no_span(start, end):
    with pytest.raises(ValueError, match="span"):
        Interval(start, end)


def test_unknown_unit():
    with pytest.raises((ValueError, TypeError), match="minutes"):
        Interval(1, 2, "minutes")  # pyright: ignore[reportArgumentType]


def test_clamped():
    assert Interval(2, 12).clamped(10) == Interval(2, 10) and Interval(10, 12).clamped(10) is None


def test_a_span_in_words_and_numbers():
    span = Interval(2, 6.5)
    assert str(span) == "span 2 to 6.5 (seconds)" and span.length == 4.5 and span.middle == 4.25
    assert span.contains(2) and span.contains(6.5) and not span.contains(6.6)
