import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.answers.boxes.box import SPACES, Box, iou
from mmrl.answers.boxes.parsing import DIGITS, format_box, parse_boxes, parse_points, says_nothing
from tests.support.styles import box_in

READABLE = {
    "object": ('{"bbox_2d": [1, 2, 3, 4]}', [(1, 2, 3, 4)]),
    "fenced list of objects": ('```json\n[{"bbox_2d": [1, 2, 3, 4], "label": "a"}]\n```', [(1, 2, 3, 4)]),
    "nested": ('{"objects": [{"bbox": [1, 2, 3, 4]}, {"bbox": [5, 6, 7, 8]}]}', [(1, 2, 3, 4), (5, 6, 7, 8)]),
    "nested lists": ("[[1, 2, 3, 4], [5, 6, 7, 8]]", [(1, 2, 3, 4), (5, 6, 7, 8)]),
    "tuple": ("(10, 20, 30, 40)", [(10, 20, 30, 40)]),
    "floats": ("[10.5, .25, 30., 4e1]", [(10.5, 0.25, 30, 40)]),
    "negative": ("[-5, -2.5, 30, 40]", [(-5, -2.5, 30, 40)]),
    "braces": ("{[50,100,100,200]}", [(50, 100, 100, 200)]),
    "bare": ("10, 20, 30, 40", [(10, 20, 30, 40)]),
    "blanks for commas": ("[10 20 30 40]", [(10, 20, 30, 40)]),
    "comma at the end": ("[10, 20, 30, 40,]", [(10, 20, 30, 40)]),
    "InternVL": ("<ref>cat</ref><box>[[1, 2, 3, 4]]</box>", [(1, 2, 3, 4)]),
    "Qwen": ("<|box_start|>(1,2),(3,4)<|box_end|><|box_start|>(5,6),(7,8)<|box_end|>", [(1, 2, 3, 4), (5, 6, 7, 8)]),
    "bare in tags": ("<box>1 2 3 4</box>", [(1, 2, 3, 4)]),
    "corners": ("[[1, 2], [3, 4]]", [(1, 2, 3, 4)]),
    "named": ("x1=1, y1=2, x2=3, y2=4", [(1, 2, 3, 4)]),
    "named in JSON": ('{"x2": 3, "y2": 4, "x1": 1, "y1": 2}', [(1, 2, 3, 4)]),
    "Python": ("{'bbox_2d': (1, 2, 3, 4)}", [(1, 2, 3, 4)]),
    "text around": ("The cat is at [1, 2, 3, 4]. I am sure.", [(1, 2, 3, 4)]),
    "several": ("first [0, 0, 10, 10] then [100, 100, 200, 200]", [(0, 0, 10, 10), (100, 100, 200, 200)]),
    "last answer": ("<answer>[0, 0, 10, 10]</answer><answer>[1, 1, 2, 2]</answer>", [(1, 1, 2, 2)]),
    "last complete answer": ("<answer>[0, 0, 10, 10]</answer> <answer>[1, 1, 2, 2]", [(0, 0, 10, 10)]),
    "answer beside thought": ("<think>[9, 9, 10, 10]</think><answer>[1, 2, 3, 4]</answer>\n", [(1, 2, 3, 4)]),
    "after the thought": ("or [9, 9, 10, 10]?</think>[1, 2, 3, 4]", [(1, 2, 3, 4)]),
    "cut after a whole box": ('[{"bbox_2d": [1, 2, 3, 4], "label": "a"}, {"bbox_2d": [5, 6', [(1, 2, 3, 4)]),
    "one inverted": ("[3, 2, 1, 4] [1, 2, 3, 4]", [(1, 2, 3, 4)]),
}
UNREADABLE = {
    "empty": "",
    "words": "<think>x</think> click the button",
    "cut": '[{"bbox_2d": [100, 50, 200, 90',
    "inverted": "[200, 200, 100, 100]",
    "no area": "[0, 0, 5, 0]",
    "three": "[1, 2, 3]",
    "five": "[1, 2, 3, 4, 0.9]",
    "point": '[{"point_2d": [150, 70]}]',
    "too large": "[0, 0, 1e999, 1]",
    "only in the thought": "<think>maybe [1, 2, 3, 4]</think><answer>I do not know</answer>",
    "thought without end": "<think>maybe [1, 2, 3, 4]",
    "glued numbers": "[1234]",
}


@pytest.mark.parametrize(("text", "corners"), READABLE.values(), ids=READABLE)
def test_readable(text, corners):
    boxes = parse_boxes(text, "norm1000")
    assert [box.corners for box in boxes] == corners
    assert all(box.space == "norm1000" for box in boxes)


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_gives_no_box(text):
    assert parse_boxes(text, "pixel") == []


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ('[{"bbox_2d": [1, 2, 3, 4], "label": "cat"}, {"label": "dog", "bbox_2d": [1, 2, 3, 4]}]', ["cat", "dog"]),
        ('[{"bbox_2d": [1, 2, 3, 4]}, {"label": "dog", "bbox_2d": [1, 2, 3, 4]}]', [None, "dog"]),
        ('{"label": "cat", "box": {"x1": 1, "y1": 2, "x2": 3, "y2": 4}}', ["cat"]),
        ('{"bbox_2d": [1, 2, 3, 4], "label": "a \\"b\\" {c} [5, 6, 7, 8]"}', ['a "b" {c} [5, 6, 7, 8]']),
        ("{'bbox_2d': [1, 2, 3, 4], 'label': 'it\\'s'}", ["it's"]),
        ("<ref>cat</ref><box>[[1, 2, 3, 4], [2, 3, 4, 5]]</box><ref>dog</ref><box>[[1, 2, 3, 4]]</box>", ["cat", "cat", "dog"]),
        ("<|object_ref_start|>cat<|object_ref_end|><|box_start|>(1,2),(3,4)<|box_end|>", ["cat"]),
        ('{"bbox_2d": [1, 2, 3, 4], "label": "cut', [None]),
    ],
)
def test_labels_belong_to_their_boxes(text, labels):
    assert [box.label for box in parse_boxes(text, "pixel")] == labels


box_in_space = st.sampled_from(SPACES).flatmap(
    lambda space: st.builds(
        lambda x, y, w, h, label: Box(x, y, x + w, y + h, space, label),
        *[st.floats(-3, 3) if space == "norm1" else st.floats(-3000, 3000)] * 2,
        *[st.floats(0.001, 2) if space == "norm1" else st.floats(0.1, 3000)] * 2,
        st.none() | st.text("abc 'xyz\"\\é{}[]", min_size=1).map(str.strip).filter(bool),
    )
)


@given(box_in_space, st.sampled_from(["json", "list", "tags", "corners"]))
def test_what_a_family_writes_is_read_back(box, style):
    (read,) = parse_boxes(f"Here: {box_in(style, box)}", box.space)
    rounded = box.rounded(DIGITS[box.space])
    assert read.corners == pytest.approx(rounded.corners, abs=1e-9)
    assert iou(read, rounded) == pytest.approx(1, abs=1e-6)
    assert read.label == (None if style == "list" else box.label)


def test_styles():
    box = Box(0.1, 0.25, 0.5, 0.75, "norm1", "cat")
    assert format_box(box) == '{"bbox_2d": [0.1, 0.25, 0.5, 0.75], "label": "cat"}'
    assert format_box(Box(1.4, 2.5, 30.6, 40), "list") == "[1, 2, 31, 40]"
    assert format_box(Box(1.25, 2, 3, 4), "list", digits=1) == "[1.2, 2, 3, 4]"


PIECES = (
    '[ ] ( ) { } , 1 - . e9 1,2,3,4 "label":" \' \\ ``` <answer> </answer> <think> </think> <box> </box> <ref> x1= y2: nan inf ٣'
)
pieces = st.sampled_from([*PIECES.split(), " ", "\n", "<|box_start|>"])


@settings(max_examples=300)
@given(st.text() | st.lists(pieces, max_size=60).map("".join))
def test_no_text_raises(text):
    for box in parse_boxes(text, "norm1000"):
        assert all(math.isfinite(x) for x in box.corners) and box.area > 0
    parse_points(text)
    says_nothing(text)


@settings(max_examples=30)
@given(st.lists(pieces, min_size=1, max_size=4).map("".join))
def test_a_long_text_of_repeated_pieces_finishes(piece):
    text = piece * (40_000 // len(piece))
    parse_boxes(text, "pixel")
    parse_points(text)


def test_deep_nesting_around_many_boxes_finishes():
    depth = 20_000
    text = '{"a": ' * depth + "[1, 2, 3, 4] " * depth + "}" * depth
    assert len(parse_boxes(text, "pixel")) == depth


@pytest.mark.parametrize(
    ("text", "points"),
    [("[150, 70]", [(150, 70)]), ("<answer>(0.5, 0.25)</answer>", [(0.5, 0.25)]), ("150, 70", [(150, 70)]), ("[1, 2, 3]", [])]
    + [(text, [(3, 4)]) for text in ("[1, 1e999] (3, 4)", "[1e999, 1] (3, 4)", "[1e999, -1e999] (3, 4)")],
)
def test_points(text, points):
    assert parse_points(text) == points


def test_saying_that_there_is_nothing():
    said = ("[]", "<answer>None</answer>", "```json\n[]\n```", "No objects.", "null")
    assert [says_nothing(text) for text in said] == [True] * 5
    assert not any(says_nothing(text) for text in ("", "<answer></answer>", "[1, 2, 3, 4]", "I see nothing like that here"))
