"""Drawn shapes and printed numbers, their wishes, faults and splits, and prompts that are made up."""

import re

import numpy as np
import pytest

from mmrl.app.plugins.resolve import load
from mmrl.data.drawn import digit_text
from mmrl.data.drawn.prompt_writers import AMOUNTS, OBJECTS, RELATIONS, TAGS, write
from mmrl.data.drawn.prompt_writers import COLOURS as NAMED
from mmrl.data.drawn.shapes import COLOURS, HELD_OUT, PAPER, SHAPES, SIDES, TRAIN, WISHES, Sketches, Wish, draw, ideal_mask, place
from mmrl.data.drawn.wishes import OPENINGS, OTHER, paraphrase
from tests.support.refused import refused


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


def test_numbers_are_dark_on_light_and_move_with_the_shift():
    pytest.importorskip("matplotlib")
    ink = 255 - np.asarray(digit_text.draw(47, 16, 32).convert("L"), np.float64)
    moved = 255 - np.asarray(digit_text.draw(47, 16, 32, (2.0, -1.0)).convert("L"), np.float64)
    columns, rows = np.arange(32), np.arange(16)
    assert ink.max() > 200 and ink[:, 0].max() < 40
    middles = [((x.sum(0) * columns).sum() / x.sum(), (x.sum(1) * rows).sum() / x.sum()) for x in (ink - 20, moved - 20)]
    assert middles[0] == pytest.approx((15.5, 7.5), abs=1.0)
    assert middles[1][0] - middles[0][0] == pytest.approx(2.0, abs=0.3)
    assert middles[1][1] - middles[0][1] == pytest.approx(-1.0, abs=0.3)


def test_a_clean_collection_says_what_it_shows():
    pytest.importorskip("matplotlib")
    pictures, captions = digit_text.Prints(confused=0.0, smeared=0.0).batch(np.random.default_rng(0), 40)
    assert pictures.shape == (40, 16, 32, 3) and pictures.dtype == np.uint8
    by_caption = {digit_text.caption(n): np.asarray(digit_text.draw(n, 16, 32), float) for n in digit_text.TRAIN}
    hits = 0
    for picture, text in zip(pictures, captions, strict=True):
        distance = {other: np.abs(picture - ideal).mean() for other, ideal in by_caption.items()}
        hits += min(distance, key=distance.__getitem__) == text
    assert hits >= 30  # numbers are moved by up to a pixel, which not every nearest picture survives


def test_faults_are_as_frequent_as_asked_for_and_the_same_for_the_same_generator():
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    clean, _ = digit_text.Prints(smeared=0.0).batch(rng, 200)
    smeared, _ = digit_text.Prints(smeared=1.0).batch(rng, 200)
    half, _ = digit_text.Prints(smeared=0.5).batch(rng, 200)
    light = [pictures.reshape(200, -1).mean(1) for pictures in (clean, smeared, half)]
    assert light[1].mean() + 10 < light[2].mean() < light[0].mean() - 10
    _, shown = digit_text.Prints(confused=0.0).batch(np.random.default_rng(3), 400)
    _, told = digit_text.Prints(confused=0.5).batch(np.random.default_rng(3), 400)
    wrong = np.mean([a != b for a, b in zip(shown, told, strict=True)])
    assert 0.42 < wrong < 0.58
    first, second = (digit_text.Prints().batch(np.random.default_rng(5), 8) for _ in range(2))
    assert (first[0] == second[0]).all() and first[1] == second[1]


def texts(prompts):
    return [prompt.text for prompt in prompts]


@pytest.mark.parametrize("writer", ["lettering", "objects", "numbers"])
def test_deterministic_and_different(writer):
    prompts = write(writer, 60)
    assert prompts == write(writer, 60) and len(prompts) == 60
    assert len(set(texts(prompts))) == len({prompt.id for prompt in prompts}) == 60
    assert texts(write(writer, 60, seed=1)) != texts(prompts)
    assert texts(write(writer, 30)) == texts(prompts)[:30]


def objects(prompt):
    return sorted(str(sorted(clause.items())) for clause in prompt.columns["include"])


def test_no_task_is_in_both_splits():
    """Also under other templates, with other seeds, or named in another order."""
    for what, writer in ((lambda p: p.answer.lower(), "lettering"), (lambda p: p.text, "numbers")):
        train = {what(prompt) for seed in (0, 1) for prompt in write(writer, None, seed=seed)}
        held = {what(prompt) for prompt in write(writer, None, "held_out", seed=2)}
        assert train and held and not train & held
    train = {str(objects(prompt)) for prompt in write("objects", 4000)}
    held = {str(objects(prompt)) for prompt in write("objects", 1000, "held_out") if prompt.columns["tag"] != "position"}
    assert not train & held


def test_about_a_fifth_is_held_out():
    shares = [write("lettering", 500), write("lettering", 500, "held_out")]
    assert all(len(share) == 500 for share in shares)
    assert set(digit_text.HELD_OUT) == {int(prompt.answer) for prompt in write("numbers", None, "held_out")}
    assert set(digit_text.TRAIN) == {int(prompt.answer) for prompt in write("numbers")}
    assert len(digit_text.HELD_OUT) == 18
    digits = [str(number) for number in digit_text.HELD_OUT]
    assert {number[0] for number in digits} == set("123456789") and {number[1] for number in digits} == set("0123456789")


def test_lettering_quotes_its_target_and_clauses_of_objects_say_what_the_text_says():
    prompts = write("objects", 2000)
    assert {prompt.columns["tag"] for prompt in prompts} == set(TAGS)
    for prompt in prompts:
        tag, include = prompt.columns["tag"], prompt.columns["include"]
        assert all(clause["class"] in OBJECTS and clause["class"] in prompt.text for clause in include)
        assert len(include) == (2 if tag in ("two_object", "position", "color_attr") else 1)
        coloured = [clause for clause in include if "color" in clause]
        assert len(coloured) == {"colors": 1, "color_attr": 2}.get(tag, 0)
        assert all(f"{clause['color']} {clause['class']}" in prompt.text and clause["color"] in NAMED for clause in coloured)
        assert [clause["count"] for clause in prompt.columns["exclude"]] == [clause["count"] + 1 for clause in include] * (
            tag == "counting"
        )
    (counted,) = [prompt for prompt in prompts if prompt.columns["tag"] == "counting" and "three clocks" in prompt.text][:1]
    assert counted.columns["include"] == [{"class": "clock", "count": 3}] and AMOUNTS[3] == "three"
    for prompt in write("lettering", 300):
        assert re.findall(r'"([^"]+)"', prompt.text) == [prompt.answer] == [prompt.columns["target"]]


def test_a_placed_object_is_the_one_named_first():
    placed = [prompt for prompt in write("objects", 600) if prompt.columns["tag"] == "position"]
    for prompt in placed:
        other, moved = prompt.columns["include"]
        relation, index = moved["position"]
        assert index == 0 and "position" not in other
        assert re.search(f"an? {moved['class']} {RELATIONS[relation]} an? {other['class']}", prompt.text)


def test_mistakes_are_named():
    refused("there is no writer 'poems' of prompts: choose one of lettering, objects, numbers", write, "poems")
    refused("choose train or held_out", write, "numbers", split="test")
    refused("only 72 of 100 different numbers prompts", write, "numbers", 100)
    refused("ask for 1 or more", write, "numbers", 0)
