"""Rewards of pictures: gold pictures score best, and their formulas give known numbers."""

import io

import pytest
from PIL import Image

from mmrl.core.types import Group, Prompt, Sample


def pictures(*images):
    return Group(0, Prompt("p7", "a fox"), tuple(Sample(image=image) for image in images))


def flat():
    return Image.new("RGB", (64, 64), (90, 140, 60))


def noisy():
    return Image.effect_noise((64, 64), 80).convert("RGB")


def kilobytes(image, quality=95):
    file = io.BytesIO()
    image.save(file, format="JPEG", quality=quality)
    return file.tell() / 1000


def test_the_plain_picture_compresses_best_and_noise_worst(reward):
    plain, worse = reward("jpeg_size")(pictures(flat(), noisy()))
    assert plain.value > worse.value
    plain, best = reward("jpeg_size", goal="incompressible")(pictures(flat(), noisy()))
    assert best.value > plain.value > 0


def test_it_is_the_size_of_the_file_in_units_of_the_scale(reward):
    image = noisy()
    (less,) = reward("jpeg_size", scale=0.5)(pictures(image))
    (more,) = reward("jpeg_size", goal="incompressible", quality=50)(pictures(image))
    assert less.value == pytest.approx(-2 * kilobytes(image)) and less.parts["kb"] == pytest.approx(kilobytes(image))
    assert more.value == pytest.approx(kilobytes(image, 50))


def test_transparency_does_not_stop_it(reward):
    (scored,) = reward("jpeg_size")(pictures(flat().convert("RGBA")))
    assert scored.value == pytest.approx(-kilobytes(flat()))


def test_mistakes_are_named(reward):
    with pytest.raises(ValueError, match="'p7' has no picture"):
        reward("jpeg_size")(Group(0, Prompt("p7"), (Sample("words"),)))
    with pytest.raises(ValueError, match="JpegSize"):
        reward("jpeg_size", scale=0)
    with pytest.raises(ValueError, match=r"JpegSize\.quality is 96: it must be 1 to 95"):
        reward("jpeg_size", quality=96)
