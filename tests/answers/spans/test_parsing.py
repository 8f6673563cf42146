"""Spans of time as models write them: readable ones, unreadable ones, round trips, and texts made to be slow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.answers.spans.interval import Interval
from mmrl.answers.spans.parsing import format_interval, parse_intervals, parse_times
from tests.support.styles import span_in

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
}
UNREADABLE = {
    "empty": "",
    "words": "at the beginning",
    "one number": "at 12 seconds",
    "inverted": "7 to 3",
    "no length": "5 to 5",
    "negative": "-3 to 5",
    "three numbers": "3, 5, 8",
    "flat list": "[1, 2, 3, 4]",
    "no clock": "1:75 to 2:00",
    "two units": "frame 3 to 7 s",
    "too large": "1e400 to 5",
    "part of a name": "scene3 to scene7",
    "only in the thought": "<think>3 to 7</think><answer>I do not know</answer>",
    "the rest of the clip": "from 3 s to the end",
}


@pytest.mark.parametrize(("text", "spans"), READABLE.values(), ids=READABLE)
def test_readable(text, spans):
    assert parse_intervals(text) == [Interval(*span) for span in spans]


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable(text):
    assert parse_intervals(text) == []


def test_units():
    assert parse_intervals("frames 12 to 48") == [Interval(12, 48, "frames")]
    assert parse_intervals("frame #12 - frame #48") == [Interval(12, 48, "frames")]
    assert parse_intervals("the 3rd frame to the 9th frame") == [Interval(3, 9, "frames")]
    assert parse_intervals("10% to 20%") == [Interval(0.1, 0.2, "norm")]
    assert parse_intervals("12 to 48", "frames") == [Interval(12, 48, "frames")]
    assert parse_intervals("0.25 to 0.5", "norm") == [Interval(0.25, 0.5, "norm")]
    assert parse_intervals("3 s to 7 s", "frames") == [Interval(3, 7)]


def test_single_times():
    assert parse_times("seen at 3.5 s, 1:02 and in frame 7") == [3.5, 62]
    assert parse_times("3, frame 7", "seconds", "frames") == [7] and parse_times("-3, 4") == [4]


SPANS = st.tuples(st.integers(0, 99990), st.integers(1, 5000)).map(lambda x: Interval(x[0] / 10, (x[0] + x[1]) / 10))


@given(SPANS, st.sampled_from(["text", "list", "json", "clock"]))
def test_what_is_written_is_read(span, style):
    (read,) = parse_intervals(f"<answer>{span_in(style, span)}</answer>")
    assert (read.start, read.end) == pytest.approx((span.start, span.end), abs=1e-6)


@given(
    st.lists(SPANS, min_size=1, max_size=5),
    st.sampled_from(["text", "list", "json", "clock"]),
    st.sampled_from([", ", "; ", "\n"]),
)
def test_several_are_read_in_order(spans, style, between):
    read = parse_intervals(between.join(span_in(style, span) for span in spans))
    assert [round(span.start, 3) for span in read] == [round(span.start, 3) for span in spans]


def test_writing():
    assert format_interval(Interval(3, 3.01)) == "3.0 to 3.1" and format_interval(Interval(3, 5), digits=0) == "3 to 5"
    assert format_interval(Interval(3, 8, "frames"), digits=0) == "frames 3 to 8"


@given(st.text(alphabet='0123456789.:,-% []{}()<>"\nabcefmnorst/\u2013', max_size=200))
def test_no_text_raises(text):
    for span in parse_intervals(text):
        assert 0 <= span.start < span.end
    parse_times(text)


HOSTILE = [
    "1",
    "1:",
    "1 ",
    "1 to ",
    "frame ",
    "frame 1 - ",
    "1.",
    "-",
    "[1,",
    "1m ",
    "1 end ",
    '{"start": 1, ',
    "1e",
    "<answer>1",
    "1 m and ",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_long_texts_end(piece):
    """Were it quadratic in the text, one of these would take minutes."""
    parse_intervals(piece * 20_000)
    parse_intervals(piece.replace(" ", " " * 20_000) * 5)
