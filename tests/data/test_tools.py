"""Tools that look closer: zooming into pictures and drawing on them in the boxes' own space, and frames at times asked for."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmrl.answers.boxes.box import Space
from mmrl.answers.calls import CallError
from mmrl.core.samples import MediaSize, Video
from mmrl.data.tools.pictures import Corners, Mark, clip, draw, frames, zoom
from tests.support.refused import refused
from tests.support.videos import HEIGHT, WIDTH, even, numbered, read_number, uneven, write_video


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
    refused(message, zoom, picture, corners, "pixel", error=CallError)


def test_a_box_is_clipped_and_the_smallest_the_longest_and_a_hundred_marks_pass(picture: Image.Image):
    assert zoom(picture, (0, 0, 28, 28), "pixel").size == (28, 28)
    assert clip((0, 0, 2800, 28), 5000, 5000) == (0, 0, 2800, 28)
    refused("101 times as long as wide, and may be 100 times", clip, (0, 0, 2829, 28), 5000, 5000, error=CallError)
    draw(picture, [Mark("point", (0, 0))] * 100, "pixel")
    refused("101 marks are to be drawn, and may be 100", draw, picture, [Mark("point", (0, 0))] * 101, "pixel", error=CallError)
    assert zoom(picture, (-50, -50, 50, 50), "pixel").size == (50, 50)
    assert zoom(picture, (300.5, 10.5, 10_000, 150.2), "pixel").tobytes() == picture.crop((300, 10, 400, 151)).tobytes()


def test_pixels_as_the_model_saw_them_need_its_size(picture: Image.Image):
    for tool in (lambda: zoom(picture, (1, 1, 20, 20), "resized"), lambda: draw(picture, [], "resized")):
        refused("give the tool its MediaSize", tool)


def test_a_broken_file_is_no_mistake_of_the_models(tmp_path: Path, picture: Image.Image):
    picture.save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:200])
    caught = refused("broken or cut short", zoom, str(tmp_path / "cut.png"), (0, 0, 50, 50), "pixel")
    assert not isinstance(caught.value, CallError)
    (tmp_path / "a.mp4").write_bytes(b"no clip")
    caught = refused("cannot be opened", frames, Video(str(tmp_path / "a.mp4")), [0.0])
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


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Frame n shows n; 50 of them, 25 a second."""
    return write_video(tmp_path_factory.mktemp("clips") / "even.mp4", even(50))


def shown(video: Video, *times: float) -> list[int]:
    return [read_number(np.asarray(picture)) for _, picture in frames(video, times)]


def test_the_frame_at_a_time_is_the_one_on_the_screen_as_asked_for_and_in_the_size_of_the_file(film: str):
    assert shown(Video(film), 0.0, 0.039, 0.04, 1.0, 2.0) == [0, 0, 1, 25, 49]
    assert shown(Video(film), 1.0, 0.4, 1.0) == [25, 10, 25]
    [(moment, picture)] = frames(Video(film), [1.019])
    assert moment == pytest.approx(1.0) and picture.size == (WIDTH, HEIGHT) and picture.mode == "RGB"


def test_uneven_clips_and_parts_have_their_own_times_and_pictures_in_a_row_are_a_clip(tmp_path: Path, film: str):
    times = uneven(30, 1)
    path = write_video(tmp_path / "uneven.mkv", times)
    assert shown(Video(path), times[7] + 0.002, times[20] + 0.002) == [7, 20]
    for i in range(6):
        Image.fromarray(numbered(i)).save(tmp_path / f"{i}.png")
    row = Video(tuple(str(tmp_path / f"{i}.png") for i in range(6)), fps=2.0)
    assert shown(row, 0.0, 1.4, 3.0) == [0, 2, 5]
    part = Video(film, start=1.0, end=1.6)
    assert shown(part, 0.0, 0.2, 0.6) == [25, 30, 39]
    refused(r"the clip lasts from 0 to 0\.60 s, and a time outside of it", frames, part, [0.7], error=CallError)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([], "0 times are asked for: ask for 1 to 8"),
        ([0.0] * 9, "9 times are asked for: ask for 1 to 8"),
        ([-0.1], "a time outside of it is asked for"),
        ([2.1], "a time outside of it is asked for"),
        ([float("nan")], "a time outside of it is asked for"),
    ],
)
def test_times_that_cannot_be_shown_are_refused_in_a_sentence(film: str, times: list[float], message: str):
    refused(message, frames, Video(film), times, error=CallError)
