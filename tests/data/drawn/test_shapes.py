"""Drawn shapes and their masks: areas, places, splits, faults, and wishes in users' words."""

import numpy as np
import pytest

from mmrl.app.plugins.resolve import load
from mmrl.data.drawn.shapes import COLOURS, HELD_OUT, PAPER, SHAPES, SIDES, TRAIN, WISHES, Sketches, Wish, draw, ideal_mask, place
from mmrl.data.drawn.wishes import OPENINGS, OTHER, paraphrase


def middle(mask):
    y, x = np.mgrid[: len(mask), : len(mask)] + 0.5
    return (mask * x).sum() / mask.sum(), (mask * y).sum() / mask.sum()


@pytest.mark.parametrize("shape", SHAPES)
def test_masks_have_the_area_and_the_middle_asked_for(shape):
    mask = ideal_mask(shape, 11.0, 20.0, 150.0, 40)
    assert mask.sum() == pytest.approx(150, rel=0.05)
    assert middle(mask) == pytest.approx((11, 20), abs=0.15)


def test_triangles_stand_on_a_side_and_shapes_differ():
    triangle = ideal_mask("triangle", 16.0, 16.0, 140.0, 32)
    widths = (triangle > 0.5).sum(1)
    assert widths[widths > 0][0] < 4 < widths[widths > 0][-1]
    square, circle = (ideal_mask(shape, 16.0, 16.0, 140.0, 32) for shape in ("square", "circle"))
    for one, other, most in ((circle, square, 0.87), (circle, triangle, 0.75), (square, triangle, 0.75)):
        assert np.minimum(one, other).sum() / np.maximum(one, other).sum() < most


@pytest.mark.parametrize(("side", "x", "y"), [("left", -1, 0), ("right", 1, 0), ("top", 0, -1), ("bottom", 0, 1)])
def test_shapes_stand_where_the_caption_says(side, x, y):
    picture = draw(Wish("blue", "circle", side), 32)
    ink = np.abs(picture - PAPER).sum(2) > 0.3
    found = middle(ink.astype(float))
    assert found == pytest.approx(place(side, 32), abs=0.3)
    assert np.sign(np.round(np.array(found) - 16)).tolist() == [x, y]
    assert picture[ink].min(0) == pytest.approx(COLOURS["blue"], abs=0.3)


def test_held_out_combinations_share_every_word_but_no_caption():
    assert set(TRAIN) | set(HELD_OUT) == set(WISHES) and not set(TRAIN) & set(HELD_OUT)
    assert (len(TRAIN), len(HELD_OUT)) == (36, 12)
    for field, words in (("colour", COLOURS), ("shape", SHAPES), ("side", SIDES)):
        counts = {word: sum(getattr(wish, field) == word for wish in HELD_OUT) for word in words}
        assert set(counts.values()) == {12 // len(words)}
    assert Wish("red", "circle", "left").caption == "a red circle on the left"


def test_sketches_come_from_their_generator_and_never_show_a_held_out_caption():
    sketches = Sketches()
    pictures, captions = sketches.batch(np.random.default_rng(3), 64)
    again, same = sketches.batch(np.random.default_rng(3), 64)
    assert pictures.shape == (64, 32, 32, 3) and pictures.dtype == np.uint8
    assert np.array_equal(pictures, again) and captions == same
    assert not {wish.caption for wish in HELD_OUT} & set(captions)
    assert {word for caption in captions for word in caption.split()} <= set(sketches.words)


def test_half_of_the_captions_are_wrong_and_half_of_the_pictures_stained():
    clean, right = Sketches(confused=0.0, stained=0.0).batch(np.random.default_rng(0), 200)
    by_caption = {wish.caption: wish for wish in TRAIN}
    for picture, caption in zip(clean[:20], right[:20], strict=True):
        plain = draw(by_caption[caption], 32)
        assert np.abs(picture / 255 - plain).mean() < 0.06
    pictures, _ = Sketches(confused=0.0).batch(np.random.default_rng(0), 200)
    share = np.mean([np.abs(picture[0, 0] / 255 - PAPER).max() > 0.01 for picture in pictures])
    assert 0.35 < share < 0.65
    _, written = Sketches(confused=1.0, stained=0.0).batch(np.random.default_rng(0), 200)
    assert len(set(written)) > 25


KNOWN = {*COLOURS, *SHAPES, *SIDES}


def test_no_user_says_a_word_of_the_captions_and_everything_is_asked_for_equally_often():
    wishes = load("wishes", "datasets")
    for split, combinations in (("train", TRAIN), ("held_out", HELD_OUT)):
        prompts = wishes(split)
        assert len({one.text for one in prompts}) == len(prompts) == len(combinations) * len(OPENINGS) * 8
        asked = [Wish(*(one.columns[name] for name in Wish._fields)) for one in prompts]
        assert {asked.count(wish) for wish in combinations} == {len(OPENINGS) * 8}
        for wish, one in zip(asked, prompts, strict=True):
            said = set(one.text.split())
            assert not said & KNOWN and all(said & set(OTHER[word]) for word in wish)
    assert wishes(size=5, seed=3) == wishes(seed=3)[:5] != wishes(size=5)


def test_a_paraphrase_says_each_thing_in_one_of_three_words():
    rng, wish = np.random.default_rng(0), Wish("red", "circle", "left")
    said = [paraphrase(wish, rng).split() for _ in range(600)]
    for at, word in ((1, "red"), (2, "circle"), (5, "left")):
        words = [one[at] for one in said]
        assert set(words) == {word, *OTHER[word]} and 150 < words.count(word) < 250
