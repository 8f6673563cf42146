"""Spans of time: overlaps, units, average precision, and how they are read from texts and answers."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.answers.boxes.detection import COCO_THRESHOLDS
from mmrl.answers.spans.attempts import read_spans
from mmrl.answers.spans.detection import key_frame_hit, mean_average_precision
from mmrl.answers.spans.interval import UNITS, Interval, Unit, merge_spans, temporal_iou, union_iou
from mmrl.answers.spans.parsing import format_interval, parse_intervals, parse_times
from mmrl.core.types import Prompt, Sample
from tests.support.refused import refused
from tests.support.styles import span_in

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
    assert union_iou([], []) == 1 and union_iou([], first) == 0


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


SECONDS, FRAMES = Interval(2, 5), Interval(2, 5, "frames")
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no duration": (lambda: SECONDS.to("norm", fps=2.0), "duration"),
    "no rate": (lambda: SECONDS.to("frames", 20.0), "frame rate"),
    "two units": (lambda: temporal_iou(SECONDS, FRAMES), "different units"),
    "two units of many": (lambda: union_iou([SECONDS], [FRAMES]), "different units"),
    "no length": (lambda: Interval(3, 3), "span"),
    "inverted": (lambda: Interval(5, 2), "span"),
    "negative": (lambda: Interval(-1, 2), "span"),
    "inf": (lambda: Interval(0, math.inf), "span"),
    "nan": (lambda: Interval(math.nan, 1), "span"),
    "no rate of a sample": (lambda: attempt("<answer>4 to 8</answer>", unit="frames"), "prompt 'p7'"),
    "several true ones": (lambda: attempt("1 to 3", (TRUTH, Interval(6, 8))).only_truth, "prompt 'p7' has 2 true spans"),
}


@pytest.mark.parametrize(("make", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_span_and_no_attempt_is_refused(make, says):
    refused(says, make)


def test_unknown_unit():
    refused("minutes", Interval, 1, 2, "minutes", error=(ValueError, TypeError))


def test_a_span_in_words_and_numbers():
    span = Interval(2, 6.5)
    assert str(span) == "span 2 to 6.5 (seconds)" and span.length == 4.5 and span.middle == 4.25
    assert span.contains(2) and span.contains(6.5) and not span.contains(6.6)
    assert Interval(2, 12).clamped(10) == Interval(2, 10) and Interval(10, 12).clamped(10) is None


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
    # all alike: two of three right, at recall 1
    assert mean_average_precision([truth[0], Interval(50, 60), truth[1]], truth, ties="together") == pytest.approx(2 / 3)
    assert (
        mean_average_precision([], []) == 1 and mean_average_precision([], truth) == 0 and mean_average_precision(truth, []) == 0
    )


def test_key_frames():
    truth = [Interval(0, 2), Interval(5, 6)]
    assert key_frame_hit([1.0, 2.0, 4.0, 6.0], truth) == 0.75 and key_frame_hit([], truth) == 0 == key_frame_hit([1.0], [])


READABLE = {
    "from to": ("from 3.2s to 7s", [(3.2, 7)]),
    "dash": ("3.2 - 7.0", [(3.2, 7)]),
    "tight dash": ("3.2-7.0", [(3.2, 7)]),
    "long dash": ("3.2s\u20137s", [(3.2, 7)]),
    "between": ("between 3 and 7 seconds", [(3, 7)]),
    "until": ("3 s until 9 s", [(3, 9)]),
    "list": ("[3.2, 7.0]", [(3.2, 7)]),
    "tuples": ("(3, 5), (8, 9)", [(3, 5), (8, 9)]),
    "nested lists": ("[[1, 2], [3, 4]]", [(1, 2), (3, 4)]),
    "object": ('{"start": 3.2, "end": 7.0}', [(3.2, 7)]),
    "fenced objects": ('```json\n[{"start_time": "00:03", "end_time": "00:07.5"}]\n```', [(3, 7.5)]),
    "several objects": ('[{"start": 1, "end": 2}, {"start": 5, "end": 9}]', [(1, 2), (5, 9)]),
    "assignments": ("start=3, end=9", [(3, 9)]),
    "minutes": ("1:05 to 1:20", [(65, 80)]),
    "hours": ("01:02:03 - 01:02:10", [(3723, 3730)]),
    "subtitles": ("00:00:03,500 --> 00:00:07,250", [(3.5, 7.25)]),
    "minutes in words": ("1m 20s to 2 min", [(80, 120)]),
    "one unit for both": ("2 to 3 minutes", [(120, 180)]),
    "Qwen3-VL": ("<3.2 seconds> to <7 seconds>", [(3.2, 7)]),
    "sentence": ("It starts at 3.2s and ends at 7s.", [(3.2, 7)]),
    "two numbers": ("3.2, 7", [(3.2, 7)]),
    "numbers beside": ("In 2 scenes of the 20 s clip, from 3 to 5 and 8 to 9", [(3, 5), (8, 9)]),
    "milliseconds": ("500 ms to 2500 ms", [(0.5, 2.5)]),
    "answer beside thought": ("<think>1 to 2</think><answer> 3.20 to 7.00 </answer>", [(3.2, 7)]),
    "last complete answer": ("<answer>1 to 2</answer><answer>3 to 4</answer> <answer>5 to", [(3, 4)]),
    "one inverted": ("7 to 3, 8 to 9", [(8, 9)]),
    "empty": ("", []),
    "words": ("at the beginning", []),
    "one number": ("at 12 seconds", []),
    "inverted": ("7 to 3", []),
    "no length": ("5 to 5", []),
    "negative": ("-3 to 5", []),
    "three numbers": ("3, 5, 8", []),
    "flat list": ("[1, 2, 3, 4]", []),
    "no clock": ("1:75 to 2:00", []),
    "two units": ("frame 3 to 7 s", []),
    "too large": ("1e400 to 5", []),
    "part of a name": ("scene3 to scene7", []),
    "only in the thought": ("<think>3 to 7</think><answer>I do not know</answer>", []),
    "the rest of the clip": ("from 3 s to the end", []),
}


@pytest.mark.parametrize(("text", "spans"), READABLE.values(), ids=READABLE)
def test_what_is_no_span_is_left_out(text, spans):
    assert parse_intervals(text) == [Interval(*span) for span in spans]


def test_units_and_single_times():
    assert parse_intervals("frames 12 to 48") == [Interval(12, 48, "frames")]
    assert parse_intervals("frame #12 - frame #48") == [Interval(12, 48, "frames")]
    assert parse_intervals("the 3rd frame to the 9th frame") == [Interval(3, 9, "frames")]
    assert parse_intervals("10% to 20%") == [Interval(0.1, 0.2, "norm")]
    assert parse_intervals("12 to 48", "frames") == [Interval(12, 48, "frames")]
    assert parse_intervals("0.25 to 0.5", "norm") == [Interval(0.25, 0.5, "norm")]
    assert parse_intervals("3 s to 7 s", "frames") == [Interval(3, 7)]
    assert parse_times("seen at 3.5 s, 1:02 and in frame 7") == [3.5, 62]
    assert parse_times("3, frame 7", "seconds", "frames") == [7] and parse_times("-3, 4") == [4]


DECIMAL = st.tuples(st.integers(0, 99990), st.integers(1, 5000)).map(lambda x: Interval(x[0] / 10, (x[0] + x[1]) / 10))


@given(
    st.lists(DECIMAL, min_size=1, max_size=5),
    st.sampled_from(["text", "list", "json", "clock"]),
    st.sampled_from([", ", "; ", "\n"]),
)
def test_what_is_written_is_read_in_its_order(spans, style, between):
    read = parse_intervals(f"<answer>{between.join(span_in(style, span) for span in spans)}</answer>")
    assert [(one.start, one.end) for one in read] == [pytest.approx((one.start, one.end), abs=1e-6) for one in spans]


def test_writing():
    assert format_interval(Interval(3, 3.01)) == "3.0 to 3.1" and format_interval(Interval(3, 5), digits=0) == "3 to 5"
    assert format_interval(Interval(3, 8, "frames"), digits=0) == "frames 3 to 8"


@given(st.text(alphabet='0123456789.:,-% []{}()<>"\nabcefmnorst/\u2013', max_size=200))
def test_no_text_raises(text):
    for span in parse_intervals(text):
        assert 0 <= span.start < span.end
    parse_times(text)


TRUTH = Interval(2, 4)


def attempt(text: str, answer: object = TRUTH, unit: Unit = "seconds", **columns: float):
    return read_spans(Prompt("p7", answer=answer, columns={"duration": 10.0, **columns}), Sample(text), unit)


def test_spans_are_cut_at_the_end_of_the_clip_and_numbers_count_the_unit_of_the_reward():
    assert attempt("<answer>4 to 8</answer>", unit="frames", fps=2.0).predicted == (Interval(2, 4),)
    found = attempt("<answer>from 3 to 30 seconds</answer>")
    assert found.predicted == (Interval(3, 10),) and found.truth == (TRUTH,) and not found.outside
    late = attempt("<answer>from 12 to 30 seconds</answer>")
    assert late.predicted == () and late.parts() == {"unparsed": 1.0, "outside": 1.0}


def test_one_true_span_is_asked_for_where_only_one_will_do():
    assert attempt("<answer>1 to 3</answer>").only_truth == TRUTH
    assert attempt("<answer>6 to 9, 2 to 5</answer>").best == Interval(2, 5)
    assert (nothing := attempt("I see it")).best is None and nothing.parts()["unparsed"] == 1.0
    assert attempt("<answer>none</answer>").parts()["unparsed"] == 0.0
