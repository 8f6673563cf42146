"""Printed numbers: dark digits in the middle of light paper, wrong captions and smears as often as asked for."""

import numpy as np
import pytest

from mmrl.data.drawn.digit_text import TRAIN, Prints, caption, draw

pytest.importorskip("matplotlib")


def test_numbers_are_dark_on_light_and_move_with_the_shift():
    ink = 255 - np.asarray(draw(47, 16, 32).convert("L"), np.float64)
    moved = 255 - np.asarray(draw(47, 16, 32, (2.0, -1.0)).convert("L"), np.float64)
    columns, rows = np.arange(32), np.arange(16)
    assert ink.max() > 200 and ink[:, 0].max() < 40
    middles = [((x.sum(0) * columns).sum() / x.sum(), (x.sum(1) * rows).sum() / x.sum()) for x in (ink - 20, moved - 20)]
    assert middles[0] == pytest.approx((15.5, 7.5), abs=1.0)
    assert middles[1][0] - middles[0][0] == pytest.approx(2.0, abs=0.3)
    assert middles[1][1] - middles[0][1] == pytest.approx(-1.0, abs=0.3)


def test_a_clean_collection_says_what_it_shows():
    pictures, captions = Prints(confused=0.0, smeared=0.0).batch(np.random.default_rng(0), 40)
    assert pictures.shape == (40, 16, 32, 3) and pictures.dtype == np.uint8
    by_caption = {text: np.asarray(draw(int(text.split()[-1]), 16, 32), float) for text in map(caption, TRAIN)}
    hits = 0
    for picture, text in zip(pictures, captions, strict=True):
        distance = {other: np.abs(picture - ideal).mean() for other, ideal in by_caption.items()}
        hits += min(distance, key=distance.__getitem__) == text
    assert hits >= 30  # numbers are moved by up to a pixel, which not every nearest picture survives


def test_faults_are_as_frequent_as_asked_for():
    rng = np.random.default_rng(0)
    clean, _ = Prints(smeared=0.0).batch(rng, 200)
    smeared, _ = Prints(smeared=1.0).batch(rng, 200)
    half, _ = Prints(smeared=0.5).batch(rng, 200)
    light = [pictures.reshape(200, -1).mean(1) for pictures in (clean, smeared, half)]
    assert light[1].mean() + 10 < light[2].mean() < light[0].mean() - 10
    _, shown = Prints(confused=0.0).batch(np.random.default_rng(3), 400)
    _, told = Prints(confused=0.5).batch(np.random.default_rng(3), 400)
    wrong = np.mean([a != b for a, b in zip(shown, told, strict=True)])
    assert 0.42 < wrong < 0.58


def test_the_same_generator_gives_the_same_collection():
    first, second = (Prints().batch(np.random.default_rng(5), 8) for _ in range(2))
    assert (first[0] == second[0]).all() and first[1] == second[1]
