"""Zooming into pictures and drawing on them, in the boxes' own space."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmrl.answers.boxes.box import Space
from mmrl.answers.calls import CallError
from mmrl.core.samples import MediaSize
from mmrl.data.tools.pictures import Corners, Mark, clip, draw, zoom


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    """400 x 200; red counts columns, green rows."""
    columns, rows = np.meshgrid(np.arange(400) // 2, np.arange(200))
    return Image.fromarray(np.stack([columns, rows, np.zeros_like(rows)], -1).astype(np.uint8))


SEEN = MediaSize(400, 200, 56, 28)


@pytest.mark.parametrize(
    ("space", "corners"),
    [
        ("pixel", (100, 50, 200, 150)),
        ("norm1000", (250, 250, 500, 750)),
        ("norm1", (0.25, 0.25, 0.5, 0.75)),
        ("resized", (14, 7, 28, 21)),
    ],
)
def test_the_crop_is_the_files_own_pixels_whatever_the_space(picture: Image.Image, space: Space, corners: Corners):
    crop = zoom(picture, corners, space, SEEN)
    assert crop.tobytes() == picture.crop((100, 50, 200, 150)).tobytes()


def test_a_crop_is_cut_from_the_file_and_held_upright(picture: Image.Image, tmp_path: Path):
    """The file lies on its side; its note turns it by a quarter."""
    turned = picture.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "a.png", exif=exif)
    assert zoom(str(tmp_path / "a.png"), (100, 50, 200, 150), "pixel").tobytes() == picture.crop((100, 50, 200, 150)).tobytes()
    assert zoom((tmp_path / "a.png").read_bytes(), (0, 0, 400, 200), "pixel").size == (400, 200)


def test_a_box_is_clipped_and_takes_pixels_that_it_touches(picture: Image.Image):
    assert zoom(picture, (-50, -50, 50, 50), "pixel").size == (50, 50)
    assert zoom(picture, (300.5, 10.5, 10_000, 150.2), "pixel").tobytes() == picture.crop((300, 10, 400, 151)).tobytes()


@pytest.mark.parametrize(
    ("corners", "message"),
    [
        ((10, 10, 10, 50), "has no area: it needs x2 > x1"),
        ((50, 50, 10, 10), "has no area"),
        ((float("nan"), 0, 50, 50), "has a coordinate that is not finite"),
        ((500, 0, 600, 100), "the box lies outside the picture"),
        ((0, 0, 27.9, 100), "the box is 27.9 pixels on its shorter side, and needs 28"),
        ((380, 0, 480, 100), "the box is 20.0 pixels on its shorter side, and needs 28"),
    ],
)
def test_a_box_that_shows_nothing_is_refused_in_a_sentence(picture: Image.Image, corners: Corners, message: str):
    with pytest.raises(CallError, match=message):
        zoom(picture, corners, "pixel")


def test_the_smallest_and_the_longest_box_that_pass(picture: Image.Image):
    assert zoom(picture, (0, 0, 28, 28), "pixel").size == (28, 28)
    assert clip((0, 0, 2800, 28), 5000, 5000) == (0, 0, 2800, 28)
    with pytest.raises(CallError, match="101 times as long as wide, and may be 100 times"):
        clip((0, 0, 2829, 28), 5000, 5000)


def test_pixels_as_the_model_saw_them_need_its_size(picture: Image.Image):
    for tool in (lambda: zoom(picture, (1, 1, 20, 20), "resized"), lambda: draw(picture, [], "resized")):
        with pytest.raises(ValueError, match="give the tool its MediaSize"):
            tool()


def test_a_broken_file_is_no_mistake_of_the_models(tmp_path: Path, picture: Image.Image):
    picture.save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:200])
    with pytest.raises(ValueError, match="broken or cut short") as caught:
        zoom(str(tmp_path / "cut.png"), (0, 0, 50, 50), "pixel")
    assert not isinstance(caught.value, CallError)


RED = (255, 0, 0)


def red(picture: Image.Image) -> set[tuple[int, int]]:
    rows, columns = np.nonzero((np.asarray(picture) == RED).all(-1))
    return set(zip(columns.tolist(), rows.tolist(), strict=True))


@pytest.mark.parametrize(
    ("mark", "on", "off"),
    [
        (Mark("point", (500, 500)), {(200, 100)}, {(190, 100), (200, 90)}),
        (Mark("line", (0, 250, 1000, 250)), {(0, 50), (200, 50), (399, 50)}, {(200, 40), (200, 60)}),
        (Mark("line", (0, 0, 1000, 1000)), {(200, 100)}, {(200, 0), (0, 199)}),
        (Mark("box", (250, 250, 500, 750)), {(100, 100), (150, 50), (200, 100), (150, 150)}, {(150, 100), (90, 100)}),
        (Mark("box", (500, 750, 250, 250)), {(100, 100), (150, 50)}, {(150, 100)}),
    ],
)
def test_marks_are_where_the_model_put_them(picture: Image.Image, mark: Mark, on: set[object], off: set[object]):
    before = picture.tobytes()
    found = red(draw(picture, [mark], "norm1000"))
    assert on <= found and not off & found
    assert picture.tobytes() == before, "it is drawn on a copy"


@pytest.mark.parametrize("space", ["pixel", "norm1", "resized"])
def test_marks_in_every_space(picture: Image.Image, space: Space):
    x, y = {"pixel": (200, 100), "norm1": (0.5, 0.5), "resized": (28, 14)}[space]
    assert (200, 100) in red(draw(picture, [Mark("point", (x, y))], space, SEEN))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((1001, 0), "(1001, 0) lies outside the picture, which is 1000 wide and 1000 high"),
        ((0, -1), "lies outside the picture"),
        ((float("nan"), 0), "lies outside the picture"),
        ((0, 1e300), "lies outside the picture"),
    ],
)
def test_marks_outside_are_refused(picture: Image.Image, numbers: tuple[float, ...], message: str):
    with pytest.raises(CallError) as caught:
        draw(picture, [Mark("point", numbers)], "norm1000")
    assert message in str(caught.value)


def test_there_may_be_a_hundred_marks(picture: Image.Image):
    draw(picture, [Mark("point", (0, 0))] * 100, "pixel")
    with pytest.raises(CallError, match="101 marks are to be drawn, and may be 100"):
        draw(picture, [Mark("point", (0, 0))] * 101, "pixel")
