import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.ops import box_iou, generalized_box_iou

from mmrl.answers.boxes.box import SPACES, Box, check_inside, extent, giou, iou, iou_matrix, is_inside
from mmrl.core.types import MediaSize

SIZE = MediaSize(640, 480, 644, 476)
coordinate = st.floats(-2000, 2000, allow_nan=False)
side = st.floats(0.01, 2000)
boxes = st.builds(lambda x, y, w, h: Box(x, y, x + w, y + h), coordinate, coordinate, side, side)
spaces = st.sampled_from(SPACES)


def test_box_known_in_three_spaces():
    # Qwen2.5-VL sees a 640 x 480 picture as 644 x 476
    pixel = Box(160, 120, 480, 240)
    assert pixel.to("norm1000", SIZE) == Box(250, 250, 750, 500, "norm1000")
    assert pixel.to("norm1", SIZE) == Box(0.25, 0.25, 0.75, 0.5, "norm1")
    assert pixel.to("resized", SIZE) == Box(161, 119, 483, 238, "resized")


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


def test_overlap_by_hand():
    # overlap 5 x 5, union 100 + 100 - 25; hull 15 x 15
    a, b = Box(0, 0, 10, 10), Box(5, 5, 15, 15)
    assert iou(a, b) == pytest.approx(25 / 175)
    assert giou(a, b) == pytest.approx(25 / 175 - 50 / 225)
    # two unit squares, 8 apart: hull 10, union 2
    assert giou(Box(0, 0, 1, 1), Box(9, 0, 10, 1)) == pytest.approx(-0.8)


@pytest.mark.parametrize("box", [Box(0, 0, 100, 1), Box(0, 0, 0.5, 0.5, "norm1"), Box(3, 3, 4, 4)], ids=str)
def test_thin_and_normalised_boxes_overlap_themselves_fully(box):
    """VLM-R1's IoU subtracts a pixel and gives 0 here."""
    assert iou(box, box) == 1.0


def test_an_overlap_of_one_pixel_counts():
    assert iou(Box(0, 0, 10, 10), Box(9, 9, 20, 20)) == pytest.approx(1 / 220)
    assert iou(Box(0, 0, 10, 10), Box(10, 0, 20, 10)) == 0


def test_iou_matrix_of_nothing_is_empty():
    assert iou_matrix([], [Box(0, 0, 1, 1)]).shape == (0, 1)


@pytest.mark.parametrize(
    ("corners", "says"),
    [((5, 0, 5, 1), "no area"), ((0, 9, 1, 2), "no area"), ((0, 0, math.inf, 1), "finite"), ((math.nan, 0, 1, 1), "finite")],
    ids=["width 0", "inverted", "inf", "nan"],
)
def test_impossible_boxes_are_refused(corners, says):
    with pytest.raises(ValueError, match=says):
        Box(*corners)


def test_boxes_in_different_spaces_do_not_mix():
    with pytest.raises(ValueError, match="different spaces"):
        iou(Box(0, 0, 1, 1), Box(0, 0, 1, 1, "norm1"))
    with pytest.raises(ValueError, match="different spaces"):
        iou_matrix([Box(0, 0, 1, 1)], [Box(0, 0, 1, 1, "norm1")])


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
        with pytest.raises(ValueError, match=r"box \[.*outside its space"):
            check_inside(box, SIZE)


def test_pixels_need_a_size_and_shares_do_not():
    assert extent("norm1000", None) == (1000, 1000)
    assert Box(250, 250, 750, 500, "norm1000").to("norm1", None) == Box(0.25, 0.25, 0.75, 0.5, "norm1")
    with pytest.raises(ValueError, match="media_sizes"):
        Box(0, 0, 1, 1).to("norm1", None)


def test_rounding_never_loses_a_side():
    assert Box(10.2, 10.6, 10.4, 30.4).rounded() == Box(10, 11, 11, 30)
    assert Box(0.12345, 0.2, 0.12349, 0.4, "norm1").rounded(3) == Box(0.123, 0.2, 0.124, 0.4, "norm1")
