"""Drawn digits: boxes that enclose them, handwriting that never crosses splits, and the same picture for the same seed."""

import sys
from pathlib import Path

import numpy as np
import pytest

from mmrl.answers.boxes.box import check_inside, iou
from mmrl.answers.boxes.parsing import parse_boxes
from mmrl.app.plugins.resolve import load
from mmrl.core.types import MediaSize
from mmrl.data.drawn import scenes, small_digits
from mmrl.data.drawn.scenes import SceneStyle, draw_scene, glyph_rows
from mmrl.data.drawn.small_digits import GLYPHS, HEIGHTS, PLACES, SIDE, box_of, draw_small_digit
from mmrl.data.tools.pictures import zoom
from tests.support.refused import refused

SHIPPED = Path(__file__).resolve().parents[3] / "datasets" / "digits_grounding.py"
SIZE = MediaSize(64, 64, 64, 64)
CROWDED = SceneStyle(glyph=(14, 18), grid=1, num_distractors=3, background="photo")


@pytest.fixture
def dark(monkeypatch):
    """Scenes on a black canvas, so that every lit pixel is a digit's."""
    monkeypatch.setitem(scenes.BACKGROUNDS, "noise", lambda rng, side: np.zeros((side, side, 3), np.float32))


@pytest.fixture
def prompts():
    return load(str(SHIPPED), "datasets")


def mask_of_box(placed, side=64):
    """True inside the digit's box."""
    x1, y1, x2, y2 = map(int, placed.corners)
    mask = np.zeros((side, side), bool)
    mask[y1:y2, x1:x2] = True
    return mask


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_boxes_enclose_all_ink_and_touch_it_on_every_side(dark, split):
    for index in range(40):
        scene = draw_scene(3, index, split)
        lit = np.asarray(scene.image).max(axis=2) > 0
        boxes = [mask_of_box(placed) for placed in (scene.asked, *scene.distractors)]
        assert not (lit & ~np.logical_or.reduce(boxes)).any()
        for box in boxes:
            ys, xs = np.nonzero(box)
            inside = lit[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
            assert inside[0].any() and inside[-1].any() and inside[:, 0].any() and inside[:, -1].any()


@pytest.mark.parametrize("style", [SceneStyle(), CROWDED], ids=["usual", "crowded"])
def test_digits_differ_and_do_not_overlap(style):
    for index in range(40):
        scene = draw_scene(0, index, "train", style)
        everyone = (scene.asked, *scene.distractors)
        assert len(scene.distractors) == style.num_distractors
        assert scene.asked.digit in style.asked and len({placed.digit for placed in everyone}) == len(everyone)
        assert np.sum([mask_of_box(placed) for placed in everyone], axis=0).max() == 1


def test_neither_place_nor_order_tells_which_digit_is_asked_for():
    """The asked digit is the one nearer the middle, and the one further left, in about half of the scenes."""
    nearer, lefter = [], []
    for index in range(400):
        scene = draw_scene(4, index)
        (x1, y1, x2, y2), (u1, v1, u2, v2) = scene.asked.corners, scene.distractors[0].corners
        nearer.append(abs(x1 + x2 - 64) + abs(y1 + y2 - 64) < abs(u1 + u2 - 64) + abs(v1 + v2 - 64))
        lefter.append(x1 + x2 < u1 + u2)
    assert 0.42 < np.mean(nearer) < 0.58 and 0.42 < np.mean(lefter) < 0.58


def test_handwriting_of_the_splits_is_disjoint_and_complete():
    rows = {split: np.concatenate(glyph_rows(split)) for split in scenes.SPLITS}
    assert not set(rows["train"]) & set(rows["held_out"])
    assert sorted(np.concatenate(list(rows.values()))) == list(range(1797))
    assert all(len(found) > 20 for split in scenes.SPLITS for found in glyph_rows(split))


def test_scenes_show_handwriting_of_their_split_only(monkeypatch):
    """With the held-out digits blanked, scenes of the training split are what they were."""
    before = [np.asarray(draw_scene(0, index, "train").image) for index in range(20)]
    images, labels = scenes._collection()
    blank = images.copy()
    blank[np.concatenate(glyph_rows("held_out"))] = np.nan
    monkeypatch.setattr(scenes, "_collection", lambda: (blank, labels))
    for index, picture in enumerate(before):
        assert np.array_equal(picture, np.asarray(draw_scene(0, index, "train").image))


def test_same_seed_same_scene_and_every_input_matters():
    base = draw_scene(1, 2, "train")
    again = draw_scene(1, 2, "train")
    assert base.asked == again.asked and np.array_equal(np.asarray(base.image), np.asarray(again.image))
    others = [draw_scene(1, 3, "train"), draw_scene(2, 2, "train"), draw_scene(1, 2, "held_out"), draw_scene(1, 2, style=CROWDED)]
    assert all(not np.array_equal(np.asarray(base.image), np.asarray(other.image)) for other in others)


def test_impossible_scenes_are_refused_with_a_reason(monkeypatch):
    refused("lower num_distractors", draw_scene, 0, 0, "train", SceneStyle(num_distractors=9))
    refused("one of train, held_out", draw_scene, 0, 0, "test")
    refused("asked is", SceneStyle, asked=(10,))
    scenes._collection.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    refused(r"mmrl\[demo\]", draw_scene, 0, 0, error=ModuleNotFoundError)


def test_prompts_are_scenes_with_boxes_inside_their_pictures(prompts):
    held_out = prompts("held_out", size=12, seed=5, asked=[7])
    assert len(held_out) == 12 and len({prompt.id for prompt in held_out}) == 12
    for index, prompt in enumerate(held_out):
        (picture,), (box,) = prompt.media, prompt.answer
        check_inside(box, MediaSize(*picture.size, *picture.size))
        assert prompt.text == "Where is the 7?" and box.label == "7" and prompt.columns["digit"] == 7
        assert box.corners == draw_scene(5, index, "held_out", SceneStyle(asked=(7,))).asked.corners
        assert len(prompt.columns["distractors"]) == 1


def test_prompts_are_a_sequence(prompts):
    drawn = prompts(size=4)
    assert drawn[-1].id == drawn[3].id and [prompt.id for prompt in drawn[1:3]] == [drawn[1].id, drawn[2].id]
    with pytest.raises(IndexError):
        drawn[4]
    refused("split", prompts, "validation")


def test_hurried_answers_are_loose_and_half_of_them_confused():
    right, hurried = (load(str(SHIPPED), "datasets")(size=200, seed=3, written=how) for how in ("right", "hurried"))
    overlaps, wrong = [], 0
    for exact, prompt in zip(right, hurried, strict=True):
        assert parse_boxes(exact.columns["completion"], "norm1000")[0].to("norm1", None).corners == pytest.approx(
            exact.answer[0].to("norm1", SIZE).corners, abs=6e-4
        )
        [box] = parse_boxes(prompt.columns["completion"], "norm1000")
        truths = [*prompt.answer, *prompt.columns["distractors"]]
        found = [iou(box.to("norm1", None), truth.to("norm1", SIZE)) for truth in truths]
        wrong += found[0] < found[1]
        overlaps.append(max(found))
    assert 0.4 < wrong / 200 < 0.6 and 0.5 < np.mean(overlaps) < 0.75
    assert hurried[7].columns["completion"] == hurried[7].columns["completion"] != right[7].columns["completion"]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch):
    """A canvas of one shade, so that every brighter pixel is the digit's."""
    monkeypatch.setattr(small_digits, "_sheet", lambda: np.zeros((1200, 1200, 3), np.float32))


def test_the_digit_lies_within_its_corners_and_its_box_cuts_all_of_it(plain: None):
    for index in range(60):
        drawn = draw_small_digit(3, index)
        pixels = np.asarray(drawn.image, np.int64).sum(2)
        lit = pixels > pixels.min()
        x1, y1, x2, y2 = drawn.corners
        assert lit[y1:y2, x1:x2].sum() == lit.sum() > 0
        assert HEIGHTS[0] <= y2 - y1 <= HEIGHTS[1]
        assert all(PLACES * corner // SIDE == place for corner, place in zip((x1, y1), drawn.place, strict=True))
        part = np.asarray(zoom(drawn.image, box_of(drawn.place), "norm1000"), np.int64).sum(2)
        assert (part > pixels.min()).sum() == lit.sum() and max(part.shape) <= 34


def test_digits_and_places_are_drawn_evenly_and_no_two_glyphs_are_alike():
    assert len({*GLYPHS}) == 10 and all([len(row) for row in glyph.split()] == [5] * 7 for glyph in GLYPHS)
    drawn = [draw_small_digit(0, index) for index in range(400)]
    assert all(20 <= sum(one.digit == digit for one in drawn) <= 62 for digit in range(10))
    assert {one.place for one in drawn} == {(x, y) for x in range(PLACES) for y in range(PLACES)}


def test_the_same_seed_draws_the_same_and_every_input_matters():
    first = draw_small_digit(1, 2).image.tobytes()
    assert draw_small_digit(1, 2).image.tobytes() == first
    others = draw_small_digit(2, 2), draw_small_digit(1, 3), draw_small_digit(1, 2, "held_out")
    assert first not in [other.image.tobytes() for other in others]
    refused("split 'test' is unknown: choose one of train, held_out", draw_small_digit, 0, 0, "test")


def test_prompts_ask_for_the_digit_and_keep_its_box():
    prompts = load("small_digits", "datasets")(size=3, seed=5, split="held_out")
    drawn = draw_small_digit(5, 1, "held_out")
    prompt = prompts[1]
    assert (prompt.id, prompt.answer, prompt.media[0].tobytes()) == ("held_out-5-1", drawn.digit, drawn.image.tobytes())
    assert prompt.columns["box"].corners == drawn.corners and "digit" in prompt.text
