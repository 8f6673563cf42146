"""The text-rendering reward with the real recognisers, and its formulas with known strings."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from mmrl.core.types import Group, Prompt, Sample
from mmrl.serving.scorers import readers
from tests.plugins.conftest import ROOT, values
from tests.support.refused import refused


def real_weights(test, packages=("onnxruntime", "rapidocr_onnxruntime", "matplotlib")):
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.real_weights(pytest.mark.skipif(bool(missing), reason=f"not installed: {missing}")(test))


def full(test):
    return real_weights(test, ("rapidocr", "matplotlib"))


def font(size):
    found = find_spec("matplotlib")
    assert found is not None and found.submodule_search_locations
    folder = Path(found.submodule_search_locations[0])
    return ImageFont.truetype(folder / "mpl-data/fonts/ttf/DejaVuSans.ttf", size)


def line(text, height=48):
    """One line of text that fills its picture."""
    face = font(round(height * 0.7))
    picture = Image.new("RGB", (round(face.getlength(text)) + height // 2, height), (240, 240, 235))
    ImageDraw.Draw(picture).text((height // 4, height // 2), text, (20, 20, 20), face, anchor="lm")
    return picture


def page(text):
    """Text somewhere in a larger picture."""
    picture = Image.new("RGB", (480, 320), (210, 200, 170))
    ImageDraw.Draw(picture).text((90, 120), text, (30, 30, 60), font(44))
    return picture


def group(prompt, *pictures):
    return Group(0, prompt, tuple(Sample(image=picture) for picture in pictures))


MOUNTAIN = Prompt("p7", 'a sign that says "MOUNTAIN"')


@real_weights
def test_the_recogniser_reads_one_line(reward):
    shown = line("MOUNTAIN"), line("MOUNTAN"), line("27 fish", 40), Image.new("RGB", (160, 48), (90, 140, 60))
    whole, less, other, blank = values(reward("ocr", engine="recogniser")(group(MOUNTAIN, *shown)))
    assert whole == 1.0
    assert less == pytest.approx(7 / 8)
    assert other < 0.3 and blank == 0.0


@real_weights
def test_blur_lowers_what_can_be_read(reward):
    picture = line("MOUNTAIN")
    blurred = [picture.filter(ImageFilter.GaussianBlur(radius)) for radius in (0, 7, 12)]
    sharp, soft, gone = values(reward("ocr", engine="recogniser")(group(MOUNTAIN, *blurred)))
    assert sharp == 1.0 and 0.3 < soft < 0.9 and gone == 0.0


@real_weights
def test_digits_of_a_generator_for_toys_can_be_read(reward):
    """16 x 32 pixels are enough, in colour as well; batches and pictures of different widths do not change a reading."""
    pictures = [line(str(number), 16) for number in (10, 47, 365, 92)]
    texts = [str(number) for number in (10, 47, 365, 92)]
    alone = [
        values(reward("ocr", engine="recogniser")(group(Prompt("n", answer=t), p)))[0]
        for t, p in zip(texts, pictures, strict=True)
    ]
    assert alone == [1.0] * 4
    together = reward("ocr", engine="recogniser", batch_size=2)(group(Prompt("n", answer="365"), *pictures))
    assert values(together)[2] == 1.0 and max(values(together)[i] for i in (0, 1, 3)) < 0.5


@real_weights
def test_colours_reach_the_network_in_its_order(reward):
    """Blue on black in a wrong order would be red on black: compare the input itself."""
    calls = []

    class Session:
        def __getattr__(self, name):
            return getattr(session, name)

        def run(self, names, feed):
            calls.append(next(iter(feed.values())))
            return session.run(names, feed)

    ocr = reward("ocr", engine="recogniser")
    reader = readers.recogniser(1)
    session, reader.session = reader.session, Session()
    ocr(group(MOUNTAIN, Image.new("RGB", (96, 48), (255, 0, 51))))
    reader.session = session
    assert calls[0].shape == (1, 3, 48, 96)
    np.testing.assert_allclose(calls[0][0, :, 10, 10], [51 / 127.5 - 1, -1.0, 1.0], atol=1e-6)


@real_weights
def test_the_recogniser_needs_no_opencv():
    """Nor the package that its weights come in."""
    program = Path(__file__).parent / "programs" / "recogniser_alone.py"
    subprocess.run([sys.executable, str(program)], cwd=ROOT, env=os.environ, check=True)


@full
def test_rapidocr_finds_text_in_full_pictures(reward):
    prompt = Prompt("p8", 'a poster with the words "Hello World" on it')
    right, less, none = reward("ocr")(group(prompt, page("Hello World"), page("Hello Wrld"), Image.new("RGB", (320, 320))))
    assert (right.value, right.parts["exact"]) == (1.0, 1.0)
    assert less.value == pytest.approx(0.9)
    assert none.value == 0.0
    (unsure,) = values(reward("ocr", confidence=1.0)(group(prompt, page("Hello World"))))
    assert unsure == 0.0


@pytest.fixture
def reading(reward, monkeypatch):
    """score, prompt, text read -> value; no model runs."""

    def score(kind, prompt, text, **fields):
        ocr = reward("ocr", engine="recogniser", score=kind, **fields)
        monkeypatch.setattr(sys.modules[type(ocr).__module__], "recogniser", lambda threads: lambda pictures, size: [text])
        (scored,) = ocr(group(prompt, Image.new("RGB", (8, 8))))
        return scored.value

    return score


NASA, HELLO = Prompt("1", answer="NASA 2049"), Prompt("2", answer="Hello World")


@pytest.mark.parametrize(
    ("kind", "prompt", "text", "value"),
    [
        ("contained", NASA, "nasa 2049", 1.0), ("contained", NASA, "the NASA 2049 probe", 1.0),
        ("contained", NASA, "NASA 2O49", 0.875), ("contained", NASA, "", 0.0), ("contained", HELLO, "World Hello", 0.2),
        ("contained", NASA, "the NASA 2O49 probe", 0.0), ("window", NASA, "the NASA 2O49 probe", 0.875),
        ("window", NASA, "xx", 0.0), ("window", Prompt("3", answer="abcd"), "a-bcd-e", 3 / 4),
        ("ned", NASA, "the NASA 2049", 1 - 3 / 11), ("ned", NASA, "NASA", 0.5), ("cer", NASA, "the NASA 2049", 1 - 3 / 8),
        ("cer", Prompt("3", answer="ab"), "vwxyz", 0.0), ("f1", HELLO, "World Hello", 1.0),
        ("f1", Prompt("3", answer="ab"), "abcd", 2 / 3), ("exact", HELLO, "hello world", 1.0),
        ("exact", HELLO, "Hello Worlds", 0.0),
    ],
)  # fmt: skip
def test_formulas(reading, kind, prompt, text, value):
    assert reading(kind, prompt, text) == pytest.approx(value)


def test_case_and_another_column_count_where_asked_for(reading):
    assert reading("exact", HELLO, "hello world", case_sensitive=True) == 0.0
    assert reading("exact", HELLO, "HelloWorld", case_sensitive=True) == 1.0
    assert reading("exact", Prompt("1", "a card", columns={"target": "one", "words": "two"}), "two", column="words") == 1.0


@pytest.mark.parametrize(
    ("prompt", "target"),
    [
        (Prompt("1", 'a card with "one" and "two"'), "onetwo"),
        (Prompt("1", "a card with “one” in gold"), "one"),
        (Prompt("1", r'a card: "say \"one\""'), 'say"one"'),
        (Prompt("1", 'a card with "one"', answer="two"), "two"),
        (Prompt("1", "a card", answer="two", columns={"target": "three"}), "three"),
        (Prompt("1", 'a card with "one"', answer=7), "one"),
        (Prompt("1", "a card", columns={"target": 47}), "47"),
        (Prompt("1", "a card", answer="two", columns={"target": None}), "two"),
    ],
)
def test_where_the_target_comes_from(reading, prompt, target):
    assert reading("exact", prompt, target, column="target") == 1.0


def test_what_cannot_be_scored_is_named(reading, reward):
    with pytest.raises(ValueError, match=r"'p9' does not say .* column 'target' or an answer .* double quotes in 'a red fox'"):
        reading("ned", Prompt("p9", "a red fox"), "x")
    refused("prompt 'p9' asks for is empty", reading, "ned", Prompt("p9", 'a sign with "  "'), "x")
    refused("'1' has no picture", reward("ocr"), Group(0, NASA, (Sample("words"),)))
    wrong: dict[str, Any] = {"confidence": 80.0, "batch_size": 0, "threads": 0}
    for name, value in wrong.items():
        refused(rf"Ocr\.{name} is {value}: it must be", reward, "ocr", **{name: value})


def test_missing_packages_are_named_with_the_extra(reward, monkeypatch):
    ocr = reward("ocr", engine="recogniser")
    readers.recogniser.cache_clear()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs the package 'onnxruntime'.*mmrl\[rewards\]"):
        ocr(group(NASA, Image.new("RGB", (96, 48))))
    monkeypatch.undo()
    monkeypatch.setattr(readers, "WEIGHTS", "rapidocr_onnxruntime/models/nothing.onnx")
    if find_spec("onnxruntime") is not None:
        with pytest.raises(FileNotFoundError, match=r"rapidocr-onnxruntime==1\.4\.4.*mmrl\[rewards\]"):
            ocr(group(NASA, Image.new("RGB", (96, 48))))


def test_an_opencv_that_does_not_load_is_named(reward, monkeypatch):
    readers.reader.cache_clear()

    def break_import(package, remedy=""):
        raise ImportError("libGL.so.1: cannot open shared object file")

    monkeypatch.setattr(readers, "import_package", break_import)
    with pytest.raises(ImportError, match=r"libGL.*opencv-python-headless.*engine = 'recogniser'"):
        reward("ocr")(group(NASA, Image.new("RGB", (96, 48))))
