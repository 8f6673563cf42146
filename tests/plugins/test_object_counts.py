"""GenEval's clauses with a detector that finds what a test says, and the loading path of a real one."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from mmrl.core.types import Group, Prompt, Sample
from mmrl.serving.scorers import models
from mmrl.serving.scorers.detectors import (
    COCO,
    COLOURS,
    Detection,
    Detector,
    canonical,
    detector_of,
    lab_colour,
    suppress_overlaps,
)

RED, BLUE = (210, 30, 40), (30, 60, 200)


def cats(count, score=0.95):
    """Boxes in a row, 20 pixels wide."""
    return [Detection("cat", score, (30.0 * i, 40.0, 30.0 * i + 20, 60.0)) for i in range(count)]


@pytest.fixture
def counts(reward, monkeypatch):
    """found, include, fields -> the score of one picture in which a detector finds that."""

    def score(found, include, picture=None, exclude=None, tag="counting", **fields):
        scored = reward("object_counts", **fields)

        def find(pictures, threshold):
            return [[one for one in found if one.score >= threshold] for _ in pictures]

        detector = Detector(frozenset(COCO), find)
        monkeypatch.setattr(sys.modules[type(scored).__module__], "detector_of", lambda *settings: detector)
        columns = {"tag": tag, "include": include, "exclude": exclude}
        picture = picture or Image.new("RGB", (300, 100), (128, 128, 128))
        (value,) = scored(Group(0, Prompt("p7", "cats", columns=columns), (Sample(image=picture),)))
        return value

    return score


@pytest.mark.parametrize(
    ("wanted", "found", "dense", "strict", "correct"),
    [(2, 2, 1, 1, 1), (2, 1, 0.5, 0, 0), (2, 3, 0.5, 0, 1), (1, 3, 0, 0, 1), (4, 0, 0, 0, 0), (1, 9, 0, 0, 1)],
)
def test_counts(wanted, found, dense, strict, correct, counts):
    score = counts(cats(found), [{"class": "cat", "count": wanted}])
    assert score.value == dense
    assert (score.parts["dense"], score.parts["strict"], score.parts["correct"]) == (dense, strict, correct)
    assert counts(cats(found), [{"class": "cat", "count": wanted}], score="strict").value == strict


def test_excluding_caps_the_benchmarks_number(counts):
    score = counts(cats(3), [{"class": "cat", "count": 2}], exclude=[{"class": "cat", "count": 3}])
    assert score.parts["correct"] == 0
    assert counts(cats(2), [{"class": "cat", "count": 2}], exclude=[{"class": "cat", "count": 3}]).parts["correct"] == 1


def test_counting_prompts_want_surer_boxes(counts):
    unsure = cats(2, score=0.5)
    assert counts(unsure, [{"class": "cat", "count": 2}]).value == 0
    assert counts(unsure, [{"class": "cat", "count": 2}], tag="two_object").value == 1
    assert counts(unsure, [{"class": "cat", "count": 2}], counting_threshold=0.3).value == 1


def place(name, x, y):
    return Detection(name, 0.95, (x - 10.0, y - 10.0, x + 10.0, y + 10.0))


@pytest.mark.parametrize(
    ("where", "true"),
    [
        ((50, 50), {"left of"}),
        ((250, 50), {"right of"}),
        ((150, 5), {"above"}),
        ((150, 95), {"below"}),
        ((100, 5), {"left of", "above"}),
        ((152, 51), set()),
    ],
)
@pytest.mark.parametrize("relation", ["left of", "right of", "above", "below"])
def test_a_place_is_right_or_earns_nothing(where, true, relation, counts):
    """The cup stands at (150, 50); a wrong place gives 0 for its clause, not a half."""
    include = [{"class": "cup", "count": 1}, {"class": "cat", "count": 1, "position": [relation, 0]}]
    score = counts([place("cup", 150, 50), place("cat", *where)], include)
    right = relation in true
    assert score.value == pytest.approx((2 + right) / 3)
    assert score.parts["strict"] == score.parts["correct"] == float(right)


def test_the_margin_counts_against_the_whole_distance(counts):
    """As in GenEval: boxes 100 and 60 wide take 16 of a distance of 30, and what is left is below half of it."""
    include = [{"class": "cup", "count": 1}, {"class": "cat", "count": 1, "position": ["left of", 0]}]
    cup = Detection("cup", 0.95, (100.0, 40.0, 200.0, 60.0))
    for away, right in ((30.0, 0), (33.0, 1)):
        cat = Detection("cat", 0.95, (120.0 - away, 40.0, 180.0 - away, 60.0))
        assert counts([cup, cat], include).parts["correct"] == right


def test_a_place_needs_the_other_object(counts):
    include = '[{"class": "cup", "count": 1}, {"class": "cat", "count": 1, "position": ["above", 0]}]'
    assert counts([place("cat", 150, 5)], include).value == pytest.approx(1 / 3)


def paint(colours):
    picture = Image.new("RGB", (300, 100), (255, 255, 255))
    draw = ImageDraw.Draw(picture)
    for i, colour in enumerate(colours):
        draw.rectangle((30 * i, 40, 30 * i + 20, 60), fill=colour)
    return picture


def test_colours(counts):
    include = [{"class": "cat", "count": 2, "color": "red"}]
    assert counts(cats(2), include, paint([RED, RED])).value == 1
    # count right, one of two red: (1 + .5) / 2
    assert counts(cats(2), include, paint([RED, BLUE])).value == 0.75
    assert counts(cats(2), include, paint([BLUE, BLUE])).value == 0.5
    # with a wrong count the colour earns nothing: (.5 + 0) / 2
    assert counts(cats(1), include, paint([RED])).value == 0.25
    assert counts(cats(2), include, paint([RED, BLUE])).parts["correct"] == 0


@pytest.mark.parametrize("name", COLOURS)
def test_colours_have_names(name):
    assert lab_colour(Image.new("RGB", (20, 20), COLOURS[name]), (0.0, 0.0, 20.0, 20.0)) == name


def test_the_middle_of_a_box_decides():
    picture = paint([RED])
    assert lab_colour(picture, (-10.0, 30.0, 30.0, 70.0)) == "red"


def test_mistakes_are_named(counts, reward):
    with pytest.raises(ValueError, match="'p7' asks for 'unicorn', which the detector does not know"):
        counts([], [{"class": "unicorn", "count": 1}])
    with pytest.raises(ValueError, match="colour 'mauve': known are red"):
        counts([], [{"class": "cat", "count": 1, "color": "mauve"}])
    with pytest.raises(ValueError, match="position"):
        counts([], [{"class": "cat", "count": 1, "position": ["near", 0]}])
    assert reward("object_counts")(Group(0, Prompt("p7", "x"), (Sample(), Sample()))) == [None, None]


def test_other_names_and_missing_keys(counts):
    mouse = [Detection("mouse", 0.95, (0.0, 0.0, 9.0, 9.0))]
    assert counts(mouse, [{"class": "computer mouse", "count": None, "color": None, "position": None}]).value == 1
    assert canonical("TVmonitor") == "tv" and canonical("dining_table") == "dining table"
    assert len(COCO) == 90 and len(set(COCO) - {"-"}) == 80 and COCO[16] == "cat" and COCO[89] == "toothbrush"


def test_overlapping_boxes_of_one_category_are_one():
    found = [
        Detection("cat", 0.6, (0.0, 0.0, 10.0, 10.0)),
        Detection("cat", 0.9, (1.0, 0.0, 11.0, 10.0)),
        Detection("dog", 0.5, (0.0, 0.0, 10.0, 10.0)),
        Detection("cat", 0.4, (40.0, 0.0, 50.0, 10.0)),
    ]
    assert sorted(suppress_overlaps(found, 0.5)) == sorted([found[1], found[2], found[3]])
    assert suppress_overlaps([], 0.5) == []


def test_any_detector_of_transformers(reward, tmp_path):
    from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessor

    torch.manual_seed(0)
    labels = {0: "N/A", 1: "cat", 2: "aeroplane"}
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": [64, 64]}
    config = YolosConfig(**small, num_detection_tokens=5, id2label=labels, label2id={v: k for k, v in labels.items()})
    model = YolosForObjectDetection(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 0, 0.3)
    model.save_pretrained(tmp_path)
    YolosImageProcessor(size={"height": 64, "width": 64}).save_pretrained(tmp_path)
    models.release()
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for h, w in ((64, 64), (40, 80), (80, 40))]
    detector = detector_of(str(tmp_path))
    assert detector.labels == {"n/a", "cat", "airplane"}
    together = detector(pictures, 0.0)
    assert all(len(found) == 5 for found in together)
    for picture, found in zip(pictures, together, strict=True):
        (alone,) = detector([picture], 0.0)
        assert [one.label for one in alone] == [one.label for one in found]
        assert np.allclose([one.corners for one in alone], [one.corners for one in found], atol=1e-2)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    # boxes are in pixels of each picture
    pixels = YolosImageProcessor(size={"height": 64, "width": 64})(pictures[0], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        x, y, w, h = (64 * model(pixels).pred_boxes[0]).T.double()
    expected = sorted(zip((x - w / 2).tolist(), (y - h / 2).tolist(), (x + w / 2).tolist(), (y + h / 2).tolist(), strict=True))
    assert np.allclose(sorted(one.corners for one in together[0]), expected, atol=0.5)
    columns = {"include": [{"class": "cat", "count": 1}]}
    group = Group(0, Prompt("p7", "a cat", columns=columns), tuple(Sample(image=picture) for picture in pictures))
    scores = reward("object_counts", detector=str(tmp_path), threshold=0.0, batch_size=2)(group)
    assert [score.parts["objects"] for score in scores] == [5, 5, 5]
