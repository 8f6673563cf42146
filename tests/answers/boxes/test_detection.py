import contextlib
import io
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.answers.boxes.box import Box, iou
from mmrl.answers.boxes.detection import (
    COCO_THRESHOLDS,
    f1,
    match,
    mean_average_precision,
    mean_iou,
    overlaps_of,
    point_in_box,
)

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


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_as_many_pairs_the_larger_overlaps_are_taken(order: tuple[int, int]):
    # both assignments give two pairs, of 0.9 + 0.8 and of 0.3 + 0.2
    overlaps = np.array([[0.3, 0.9], [0.8, 0.2]])[list(order)]
    assert sum(match(overlaps)) == pytest.approx(1.7)


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


def test_map_averages_over_thresholds():
    # IoU 98^2 / (2 * 100^2 - 98^2) = 0.924: right at 9 of the 10 thresholds
    assert mean_average_precision([Box(12, 12, 112, 112, label="cat")], [CAT]) == pytest.approx(0.9)
    assert COCO_THRESHOLDS == (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


def test_points_on_the_edge_are_inside():
    assert point_in_box((10.0, 110.0), CAT)
    assert not point_in_box((9.99, 50.0), CAT)
