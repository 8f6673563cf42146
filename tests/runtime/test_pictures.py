"""What a picture looks like to everybody: upright, in RGB of 8 bits, on white."""

import io
import pickle
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps

from mmrl.runtime.pictures import notes_on, open_upright, upright_rgb
from tests.support.raw_pictures import png_of, tiff_of

WHITE, RED = [255, 255, 255], [255, 0, 0]


def drawing() -> Image.Image:
    """Red on what is transparent, whose hidden colour is black."""
    picture = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    picture.paste((255, 0, 0, 255), (2, 2, 6, 6))
    return picture


def again(picture: Image.Image, kind: str, **how: object) -> Image.Image:
    """The picture out of a file of this kind."""
    file = io.BytesIO()
    picture.save(file, kind, **how)
    return Image.open(io.BytesIO(file.getvalue()))


def png(depth: int, colours: int, row: bytes, transparent: bytes) -> Image.Image:
    """A PNG of two pixels in one row, with a colour that stands for transparent."""
    chunks = (b"tRNS", transparent), (b"IDAT", zlib.compress(b"\0" + row))
    return Image.open(io.BytesIO(png_of((2, 1), depth, colours, *chunks)))


@pytest.mark.parametrize(
    "picture",
    [
        drawing(),
        drawing().convert("RGBa"),
        drawing().quantize(4),
        again(drawing(), "PNG"),
        again(drawing(), "WEBP", lossless=True),
        again(drawing(), "GIF"),
        again(drawing(), "TIFF"),
        again(drawing(), "JPEG2000"),
        again(drawing().quantize(4), "PNG"),
    ],
    ids=lambda picture: f"{picture.format or 'PIL'} {picture.mode}",
)
def test_what_is_transparent_is_white_in_every_mode_and_format(picture):
    pixels = np.asarray(upright_rgb(picture))
    assert pixels[0, 0].tolist() == WHITE and np.abs(pixels[4, 4] - np.array(RED)).max() <= 4
    assert notes_on(picture) == ("pictures with transparency, which is laid on white",)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "MPO"])
def test_the_first_of_several_frames_is_shown_and_the_others_are_noted(kind, tmp_path):
    """But for what phones store beside a photograph."""
    colours = [Image.new("RGB", (8, 8), colour) for colour in (tuple(RED), (0, 0, 255))]
    for frames in (1, 2):
        file = tmp_path / f"{frames}.{kind}"
        colours[0].save(file, kind, save_all=True, append_images=colours[1:frames])
        with Image.open(file) as picture:
            noted = ("pictures of several frames, of which the first is shown",) if frames == 2 and kind != "MPO" else ()
            assert notes_on(picture) == noted
            assert np.abs(np.asarray(upright_rgb(picture))[4, 4] - np.array(RED)).max() <= 4


@pytest.mark.parametrize("mode", ["LA", "La", "PA"])
def test_greys_and_palettes_with_alpha_are_white_by_their_share(mode):
    assert upright_rgb(Image.new("RGBA", (1, 1), (0, 0, 0, 51))).getpixel((0, 0)) == (204, 204, 204)
    picture = Image.new("PA" if mode == "PA" else "LA", (2, 1))
    if mode == "PA":
        picture.putpalette([7, 7, 7])
    picture.putpixel((1, 0), (0 if mode == "PA" else 7, 255))
    assert np.asarray(upright_rgb(picture.convert(mode)))[0].tolist() == [WHITE, [7, 7, 7]]


def tiff(bits: int, black: int, row: bytes) -> Image.Image:
    return Image.open(io.BytesIO(tiff_of(bits, black, row)))


@pytest.mark.parametrize(
    ("picture", "shown"),
    [
        (png(1, 0, b"\x40", b"\0\1"), [0, 255]),
        (png(2, 0, b"\x60", b"\0\1"), [255, 170]),
        (png(4, 0, b"\xf1", b"\0\1"), [255, 255]),
        (png(8, 0, b"\x09\x07", b"\0\x07"), [9, 255]),
        (png(16, 0, struct.pack(">2H", 1000, 25700), b"\x03\xe8"), [255, 100]),
        (png(16, 2, struct.pack(">6H", 5, 6, 7, 25700, 25700, 25700), b"\0\5\0\6\0\7"), [0, 100]),
        (tiff(12, 1, b"\xff\xf0\x00"), [255, 0]),
        (tiff(16, 0, struct.pack("<2H", 0, 65535)), [255, 0]),
    ],
    ids=["1 bit", "2 bits", "4 bits", "8 bits", "16 bits", "RGB of 16 bits", "0 is black", "0 is white"],
)
def test_a_colour_that_stands_for_transparent_and_what_a_tiff_says_is_white(picture, shown):
    assert np.asarray(upright_rgb(picture))[0, :, 0].tolist() == shown


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG2000", "PPM"])
def test_a_ramp_of_16_bits_stays_a_ramp(kind):
    ramp = np.linspace(0, 65535, 256).round().astype(np.uint16)[None].repeat(4, 0)
    found = again(Image.fromarray(ramp), kind)
    assert np.asarray(upright_rgb(found))[2, :, 1].tolist() == list(range(256))
    assert notes_on(found) == ("pictures of 16 bits, shown in 8",)


@pytest.mark.parametrize(("kind", "word"), [(np.float32, "floats"), (np.int32, "integers")])
def test_numbers_without_a_white_are_refused(kind, word):
    for picture in (Image.fromarray(np.ones((2, 2), kind)), again(Image.fromarray(np.ones((2, 2), kind)), "TIFF")):
        for look in (upright_rgb, notes_on):
            with pytest.raises(ValueError, match=f"holds {word} of 32 bits, of which nothing says what is white: save it in 8"):
                look(picture)


def test_turned_pictures_of_16_bits_are_turned():
    values = np.array([[0, 65535]], np.uint16)
    file, picture = io.BytesIO(), Image.fromarray(values)
    exif = Image.Exif()
    exif[0x112] = 6
    picture.save(file, "PNG", exif=exif)
    assert np.asarray(upright_rgb(Image.open(file)))[..., 0].tolist() == [[0], [255]]
    assert upright_rgb(picture) is not picture and picture.mode == "I;16"


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
def test_a_copy_shows_the_same_lent_or_not_and_drawing_on_it_leaves_the_picture_as_it_was(mode):
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).convert(mode)
    before = picture.tobytes()
    for copy in (own := upright_rgb(picture), upright_rgb(picture, lent=True)):
        assert type(copy) is Image.Image and copy.format is None and copy.tobytes() == own.convert("RGB").tobytes()
    for copy in (own, upright_rgb(picture, lent=True)):
        ImageDraw.Draw(copy).rectangle((0, 0, 3, 3), "red")
        copy.paste("blue", (0, 0, 2, 2))
        assert copy.getpixel((0, 0)) == (0, 0, 255) and picture.tobytes() == before


@pytest.mark.parametrize("orientation", [None, 1, 3, 6])
def test_a_file_is_decoded_into_the_picture_that_is_shown_without_a_copy_of_its_pixels(tmp_path, monkeypatch, orientation):
    exif = Image.Exif()
    if orientation:
        exif[0x112] = orientation
    Image.fromarray(np.arange(3072, dtype=np.uint8).reshape(32, 32, 3)).save(path := tmp_path / "a.jpg", exif=exif)
    with Image.open(path) as stored:
        expected = ImageOps.exif_transpose(stored).convert("RGB")
    with monkeypatch.context() as watched:
        watched.delattr(Image.Image, "copy")
        found = open_upright(path)
    assert found.tobytes() == expected.tobytes() and found.info == expected.info and found == expected
    assert pickle.dumps(found) == pickle.dumps(expected)


def test_own_pictures_are_copied_so_that_a_world_may_go_on_drawing_on_them():
    canvas = Image.new("RGB", (4, 4), "white")
    shown = open_upright(canvas)
    canvas.paste("black", (0, 0, 4, 4))
    assert shown.getpixel((0, 0)) == (255, 255, 255)
