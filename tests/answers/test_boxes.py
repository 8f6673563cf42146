"""Boxes: spaces, overlaps, matching and average precision, and how they are read from texts and answers."""

import contextlib
import io
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import box_iou, generalized_box_iou

from mmrl.answers.boxes.attempts import AnySpace, read_boxes, true_boxes
from mmrl.answers.boxes.box import SPACES, Box, check_inside, extent, giou, iou, iou_matrix, is_inside
from mmrl.answers.boxes.detection import f1, match, mean_average_precision, mean_iou, overlaps_of, point_in_box
from mmrl.answers.boxes.parsing import DIGITS, format_box, parse_boxes, parse_points, says_nothing
from mmrl.core.types import MediaSize, Prompt, Sample
from tests.support.refused import refused
from tests.support.styles import box_in

SIZE = MediaSize(640, 480, 644, 476)
coordinate = st.floats(-2000, 2000, allow_nan=False)
side = st.floats(0.01, 2000)
boxes = st.builds(lambda x, y, w, h: Box(x, y, x + w, y + h), coordinate, coordinate, side, side)
spaces = st.sampled_from(SPACES)


@given(boxes, spaces, spaces, st.integers(1, 4000), st.integers(1, 4000), st.integers(28, 1000), st.integers(28, 1000))
def test_spaces_round_trip(box, start, over, width, height, seen_width, seen_height):
    size = MediaSize(width, height, seen_width, seen_height)
    box = replace(box, space=start, label="cat")
    back = box.to(over, size).to(start, size)
    assert back.space == start and back.label == "cat"
    assert back.corners == pytest.approx(box.corners, rel=1e-9, abs=1e-9)


@given(boxes, boxes, spaces)
def test_iou_is_the_same_in_every_space(a, b, space):
    assert iou(a.to(space, SIZE), b.to(space, SIZE)) == pytest.approx(iou(a, b), abs=1e-6)


@given(boxes, boxes)
def test_overlaps_equal_torchvision(a, b):
    first, second = (torch.tensor([box.corners], dtype=torch.float64) for box in (a, b))
    assert iou(a, b) == pytest.approx(float(box_iou(first, second)), abs=1e-9)
    assert giou(a, b) == pytest.approx(float(generalized_box_iou(first, second)), abs=1e-9)
    assert iou_matrix([a], [b]).item() == pytest.approx(iou(a, b), abs=1e-9)
    assert iou(a, a) == 1, "VLM-R1's subtracts a pixel, and is 0 of thin boxes"


def test_edges_and_no_boxes_overlap_nothing():
    assert iou(Box(0, 0, 10, 10), Box(10, 0, 20, 10)) == 0 and iou_matrix([], [Box(0, 0, 10, 10)]).shape == (0, 1)


PIXEL, SHARE = Box(0, 0, 1, 1), Box(0, 0, 1, 1, "norm1")
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "width 0": (lambda: Box(5, 0, 5, 1), "no area"),
    "inverted": (lambda: Box(0, 9, 1, 2), "no area"),
    "inf": (lambda: Box(0, 0, math.inf, 1), "finite"),
    "nan": (lambda: Box(math.nan, 0, 1, 1), "finite"),
    "two spaces": (lambda: iou(PIXEL, SHARE), "different spaces"),
    "two spaces of many": (lambda: iou_matrix([PIXEL], [SHARE]), "different spaces"),
    "pixels of no size": (lambda: PIXEL.to("norm1", None), "media_sizes"),
    "no size of a sample": (lambda: attempt("[250, 250, 750, 500]", sizes=()), r"'p7'.*media_sizes"),
    "auto": (lambda: attempt("[1, 2, 3, 4]", "auto"), '"auto"'),
    "text": (lambda: attempt("[1, 2, 3, 4]", answer="B"), r"'p7' is 'B'.*Box"),
    "mixed": (lambda: attempt("[1, 2, 3, 4]", answer=(TRUTH, "B")), "'p7'"),
    "truth outside": (lambda: attempt("[1, 2, 3, 4]", answer=Box(0, 0, 641, 5)), r"'p7'.*outside its space"),
    "no text": (lambda: attempt(None), "'p7' has no text"),
}


@pytest.mark.parametrize(("make", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_box_and_no_attempt_is_refused(make, says):
    refused(says, make)


@pytest.mark.parametrize(
    ("box", "inside"),
    [
        (Box(0, 0, 640, 480), True),
        (Box(0, 0, 640 + 1e-7, 480), True),
        (Box(0, 0, 641, 480), False),
        (Box(-1, 0, 640, 480), False),
        (Box(0, 0, 644, 476, "resized"), True),
        (Box(0, 0, 1001, 10, "norm1000"), False),
        (Box(0, 0, 1.5, 1, "norm1"), False),
    ],
    ids=str,
)
def test_inside(box, inside):
    assert is_inside(box, SIZE) is inside
    if not inside:
        refused(r"box \[.*outside its space", check_inside, box, SIZE)


def test_shares_need_no_size():
    assert extent("norm1000", None) == (1000, 1000)
    assert Box(250, 250, 750, 500, "norm1000").to("norm1", None) == Box(0.25, 0.25, 0.75, 0.5, "norm1")


def test_rounding_never_loses_a_side():
    assert Box(10.2, 10.6, 10.4, 30.4).rounded() == Box(10, 11, 11, 30)
    assert Box(0.12345, 0.2, 0.12349, 0.4, "norm1").rounded(3) == Box(0.123, 0.2, 0.124, 0.4, "norm1")


CAT, DOG = Box(10, 10, 110, 110, label="cat"), Box(200, 200, 300, 400, label="dog")
box = st.builds(
    lambda x, y, w, h, label: Box(x, y, x + w, y + h, label=label),
    *[st.integers(0, 12)] * 2,
    *[st.integers(1, 12)] * 2,
    st.sampled_from(["cat", "dog"]),
)
few_boxes = st.lists(box, max_size=4)


def best_assignment(predicted, truth, threshold, labels):
    """Slow reference: over all one-to-one assignments the largest (pairs that count, sum of IoU)."""
    if len(predicted) > len(truth):
        return best_assignment(truth, predicted, threshold, labels)
    best = (0, 0.0)
    for chosen in permutations(truth, len(predicted)):
        values = [iou(p, t) for p, t in zip(predicted, chosen, strict=True) if not labels or p.label == t.label]
        values = [value for value in values if value > 0 and value >= threshold]
        best = max(best, (len(values), round(sum(values), 9)))
    return best


@settings(max_examples=60)
@given(few_boxes, few_boxes, st.sampled_from([0.0, 0.25, 0.5]), st.booleans())
def test_matching_equals_trying_all_assignments(predicted, truth, threshold, labels):
    found = match(overlaps_of(predicted, truth, labels), threshold)
    assert (len(found), pytest.approx(sum(found), abs=1e-6)) == best_assignment(predicted, truth, threshold, labels)


def test_greedy_matching_would_lose_a_pair():
    # the first prediction overlaps both true boxes and the second only the left one: greedy gives the left one away
    truth = [Box(0, 0, 10, 10), Box(4, 0, 14, 10)]
    predicted = [Box(1, 0, 11, 10), Box(-2, 0, 8, 10)]
    assert f1(predicted, truth, threshold=0.4) == 1.0
    # both assignments give two pairs, of 0.9 + 0.8 and of 0.3 + 0.2: the larger ones are taken
    for order in ([0, 1], [1, 0]):
        assert sum(match(np.array([[0.3, 0.9], [0.8, 0.2]])[order])) == pytest.approx(1.7)


def test_f1_and_mean_iou_by_hand():
    shifted = Box(12, 12, 112, 112, label="cat")
    overlap = 98 * 98 / (2 * 100 * 100 - 98 * 98)
    assert f1([shifted], [CAT, DOG]) == pytest.approx(2 / 3)
    assert mean_iou([shifted], [CAT, DOG]) == pytest.approx(overlap / 2)
    assert mean_iou([CAT, DOG, shifted], [CAT]) == pytest.approx(1 / 3)
    assert f1([Box(*CAT.corners, label="dog")], [CAT], labels=True) == 0
    assert f1([], []) == mean_iou([], []) == mean_average_precision([], []) == 1
    assert f1([CAT], []) == f1([], [CAT]) == mean_iou([], [CAT]) == mean_average_precision([CAT], []) == 0


def coco_tool_map(predicted, truth):
    """pycocotools, on one picture, all scores 1; unlike ours it ignores labels that no true box has."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    names = sorted({b.label for b in truth})

    def rows(boxes) -> Any:
        found = [b for b in boxes if b.label in names]
        return [
            {"id": i + 1, "image_id": 1, "category_id": names.index(b.label) + 1, "score": 1.0, "iscrowd": 0, "area": b.area}
            | {"bbox": [b.x1, b.y1, b.x2 - b.x1, b.y2 - b.y1]}
            for i, b in enumerate(found)
        ]

    with contextlib.redirect_stdout(io.StringIO()):
        gold: Any = COCO()
        gold.dataset = {
            "info": {},
            "images": [{"id": 1, "width": 512, "height": 512}],
            "categories": [{"id": i + 1, "name": name} for i, name in enumerate(names)],
            "annotations": rows(truth),
        }
        gold.createIndex()
        if not rows(predicted):
            return 0.0
        tool = COCOeval(gold, gold.loadRes(rows(predicted)), "bbox")
        tool.evaluate()
        tool.accumulate()
    precision = tool.eval["precision"][:, :, :, 0, 2]
    return float(np.mean(precision[precision > -1]))


@settings(max_examples=60)
@given(few_boxes, st.lists(box, min_size=1, max_size=4))
def test_map_in_written_order_equals_the_coco_tool(predicted, truth):
    names = {b.label for b in truth}
    known = [b for b in predicted if b.label in names]
    assert mean_average_precision(known, truth, ties="order") == pytest.approx(coco_tool_map(predicted, truth), abs=1e-9)


@settings(max_examples=40)
@given(few_boxes, st.lists(box, min_size=1, max_size=3), st.randoms())
def test_map_of_ties_does_not_depend_on_order(predicted, truth, random):
    shuffled = random.sample(predicted, len(predicted))
    assert mean_average_precision(shuffled, truth) == pytest.approx(mean_average_precision(predicted, truth))


def test_map_charges_for_invented_boxes():
    """VLM-R1's detection reward gives 1.0 to both: false boxes after the right ones, and unknown labels, are free there."""
    more = Box(500, 500, 600, 600, label="cat")
    assert mean_average_precision([CAT, DOG, more], [CAT, DOG], ties="order") == 1.0
    # cat: precision 1/2 at recall 1; dog: 1
    assert mean_average_precision([CAT, DOG, more], [CAT, DOG]) == pytest.approx(0.75)
    bird = Box(500, 500, 600, 600, label="bird")
    assert mean_average_precision([CAT, DOG, bird], [CAT, DOG], ties="order") == pytest.approx(2 / 3)


def test_points_on_the_edge_are_inside():
    assert point_in_box((10.0, 110.0), CAT)
    assert not point_in_box((9.99, 50.0), CAT)


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
    "empty": ("", []),
    "words": ("<think>x</think> click the button", []),
    "cut": ('[{"bbox_2d": [100, 50, 200, 90', []),
    "inverted": ("[200, 200, 100, 100]", []),
    "no area": ("[0, 0, 5, 0]", []),
    "three": ("[1, 2, 3]", []),
    "five": ("[1, 2, 3, 4, 0.9]", []),
    "point": ('[{"point_2d": [150, 70]}]', []),
    "too large": ("[0, 0, 1e999, 1]", []),
    "only in the thought": ("<think>maybe [1, 2, 3, 4]</think><answer>I do not know</answer>", []),
    "thought without end": ("<think>maybe [1, 2, 3, 4]", []),
    "glued numbers": ("[1234]", []),
}


@pytest.mark.parametrize(("text", "corners"), READABLE.values(), ids=READABLE)
def test_what_is_no_box_is_left_out(text, corners):
    boxes = parse_boxes(text, "norm1000")
    assert [box.corners for box in boxes] == corners
    assert all(box.space == "norm1000" for box in boxes)


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


TRUTH = Box(160, 120, 480, 240)


def attempt(text, space: AnySpace = "norm1000", answer: object = TRUTH, sizes=(SIZE,)):
    return read_boxes(Prompt("p7", answer=answer), Sample(text, media_sizes=sizes), space)


def test_prediction_and_truth_end_in_pixels_of_the_file():
    found = attempt("[161, 119, 483, 238]", "resized")
    assert found.predicted == (TRUTH,) and found.truth == (TRUTH,) and found.extent == (640, 480)
    found = attempt("[250, 250, 750, 500]", "norm1000", Box(0.25, 0.25, 0.75, 0.5, "norm1"))
    assert found.predicted == found.truth == (TRUTH,)
    assert attempt("[500, 500]").points == ((320, 240),) and attempt("[500, 1500]").outside


@pytest.mark.parametrize(
    ("text", "unparsed", "outside"),
    [("[250, 250, 750, 500]", 0, 0), ("I see it", 1, 0), ("[160, 120, 480, 1080]", 1, 1), ("[]", 0, 0), ("[-1, 0, 5, 5]", 1, 1)],
)
def test_unreadable_and_outside_are_counted(text, unparsed, outside):
    parts = attempt(text).parts()
    assert (parts["unparsed"], parts["outside"]) == (unparsed, outside)
    assert attempt("[250, 250, 750, 500] [0, 0, 1500, 10]").predicted == (), "one box outside voids the whole text"


def test_naming_many_boxes_does_not_pay():
    one, two = attempt("[250, 250, 750, 500]"), attempt("[250, 250, 750, 500] [0, 0, 10, 10]")
    again = attempt("[250, 250, 750, 500], yes, [250, 250, 750, 500]")

    def same(a, b):
        return float(a == b)

    assert (one.best(same), two.best(same), again.best(same)) == (1, 0.5, 1)


def test_without_sizes_only_equal_kinds_of_space_compare():
    found = attempt("[160, 120, 480, 240]", "pixel", (TRUTH, TRUTH), ())
    assert found.predicted == found.truth == (TRUTH,), "what stands there twice is one"
    share = Box(0.25, 0.25, 0.75, 0.5, "norm1")
    assert attempt("[250, 250, 750, 500]", "norm1000", share, ()).truth[0].corners == (250, 250, 750, 500)


def test_true_boxes_accepts_one_or_several():
    assert true_boxes(Prompt("p", answer=TRUTH)) == (TRUTH,)
    assert true_boxes(Prompt("p", answer=[TRUTH, TRUTH])) == (TRUTH, TRUTH)
    assert true_boxes(Prompt("p", answer=())) == ()


def test_boxes_and_points_that_are_written_with_y_first():
    written = "[250, 250, 500, 750]"
    assert attempt(written, "norm1000_yx").predicted == (TRUTH,) != attempt(written).predicted
    assert attempt("x1=250, y1=250, x2=750, y2=500", "norm1000_yx").predicted == (TRUTH,)
    assert attempt("[375, 500]", "norm1000_yx").points == (TRUTH.center,)
    assert format_box(TRUTH.to("norm1000_yx", SIZE), "list") == written
