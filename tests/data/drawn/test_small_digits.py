"""Pictures of one small digit: where it is said to be, drawn from their seed, and cut out by its box."""

import numpy as np
import pytest

from mmrl.app.plugins.resolve import load
from mmrl.data.drawn import small_digits
from mmrl.data.drawn.small_digits import GLYPHS, HEIGHTS, PLACES, SIDE, box_of, draw_small_digit
from mmrl.data.tools.pictures import zoom


@pytest.fixture
def dark(monkeypatch: pytest.MonkeyPatch):
    """A canvas of one shade, so that every brighter pixel is the digit's."""
    monkeypatch.setattr(small_digits, "_sheet", lambda: np.zeros((1200, 1200, 3), np.float32))


def test_the_digit_lies_within_its_corners_and_its_box_cuts_all_of_it(dark: None):
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
    with pytest.raises(ValueError, match="split 'test' is unknown: choose one of train, held_out"):
        draw_small_digit(0, 0, "test")


def test_prompts_ask_for_the_digit_and_keep_its_box():
    prompts = load("small_digits", "datasets")(size=3, seed=5, split="held_out")
    drawn = draw_small_digit(5, 1, "held_out")
    prompt = prompts[1]
    assert (prompt.id, prompt.answer, prompt.media[0].tobytes()) == ("held_out-5-1", drawn.digit, drawn.image.tobytes())
    assert prompt.columns["box"].corners == drawn.corners and "digit" in prompt.text
