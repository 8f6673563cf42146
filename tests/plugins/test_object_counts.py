"""GenEval's objects: its clauses, and its judges of real classes, which find boxes or outlines and name the colour inside."""

import sys
from pathlib import Path
from typing import Any

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
    instances_of,
    lab_colour,
    suppress_overlaps,
)
from tests.support.refused import refused

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


def test_excluding_caps_the_benchmarks_number_and_counting_prompts_want_surer_boxes(counts):
    score = counts(cats(3), [{"class": "cat", "count": 2}], exclude=[{"class": "cat", "count": 3}])
    assert score.parts["correct"] == 0
    assert counts(cats(2), [{"class": "cat", "count": 2}], exclude=[{"class": "cat", "count": 3}]).parts["correct"] == 1
    unsure = cats(2, score=0.5)
    assert counts(unsure, [{"class": "cat", "count": 2}]).value == 0
    assert counts(unsure, [{"class": "cat", "count": 2}], tag="two_object").value == 1
    assert counts(unsure, [{"class": "cat", "count": 2}], counting_threshold=0.3).value == 1


def place(name, x, y):
    return Detection(name, 0.95, (x - 10.0, y - 10.0, x + 10.0, y + 10.0))


@pytest.mark.parametrize(
    ("where", "true"),
    [
        ((50, 50), {"left of"}), ((250, 50), {"right of"}), ((150, 5), {"above"}), ((150, 95), {"below"}),
        ((100, 5), {"left of", "above"}), ((152, 51), set()),
    ],
)  # fmt: skip
@pytest.mark.parametrize("relation", ["left of", "right of", "above", "below"])
def test_a_place_is_right_or_earns_nothing(where, true, relation, counts):
    """The cup stands at (150, 50); a wrong place gives 0 for its clause, not a half."""
    include = [{"class": "cup", "count": 1}, {"class": "cat", "count": 1, "position": [relation, 0]}]
    score = counts([place("cup", 150, 50), place("cat", *where)], include)
    right = relation in true
    assert score.value == pytest.approx((2 + right) / 3)
    assert score.parts["strict"] == score.parts["correct"] == float(right)


def test_the_margin_counts_against_the_whole_distance_and_a_place_needs_the_other_object(counts):
    """As in GenEval: boxes 100 and 60 wide take 16 of a distance of 30, and what is left is below half of it."""
    include = [{"class": "cup", "count": 1}, {"class": "cat", "count": 1, "position": ["left of", 0]}]
    cup = Detection("cup", 0.95, (100.0, 40.0, 200.0, 60.0))
    for away, right in ((30.0, 0), (33.0, 1)):
        cat = Detection("cat", 0.95, (120.0 - away, 40.0, 180.0 - away, 60.0))
        assert counts([cup, cat], include).parts["correct"] == right
    include = '[{"class": "cup", "count": 1}, {"class": "cat", "count": 1, "position": ["above", 0]}]'
    assert counts([place("cat", 150, 5)], include).value == pytest.approx(1 / 3)


def paint(colours):
    picture = Image.new("RGB", (300, 100), (255, 255, 255))
    draw = ImageDraw.Draw(picture)
    for i, colour in enumerate(colours):
        draw.rectangle((30 * i, 40, 30 * i + 20, 60), fill=colour)
    return picture


def test_colours_are_those_of_the_middle_of_a_box(counts):
    include = [{"class": "cat", "count": 2, "color": "red"}]
    assert counts(cats(2), include, paint([RED, RED])).value == 1
    # count right, one of two red: (1 + .5) / 2
    assert counts(cats(2), include, paint([RED, BLUE])).value == 0.75
    assert counts(cats(2), include, paint([BLUE, BLUE])).value == 0.5
    # with a wrong count the colour earns nothing: (.5 + 0) / 2
    assert counts(cats(1), include, paint([RED])).value == 0.25
    assert counts(cats(2), include, paint([RED, BLUE])).parts["correct"] == 0
    picture = paint([RED])
    assert lab_colour(picture, (-10.0, 30.0, 30.0, 70.0)) == "red"


@pytest.mark.parametrize("name", COLOURS)
def test_colours_have_names(name):
    assert lab_colour(Image.new("RGB", (20, 20), COLOURS[name]), (0.0, 0.0, 20.0, 20.0)) == name


def test_other_names_and_missing_keys_count_and_mistakes_are_named(counts, reward):
    mouse = [Detection("mouse", 0.95, (0.0, 0.0, 9.0, 9.0))]
    assert counts(mouse, [{"class": "computer mouse", "count": None, "color": None, "position": None}]).value == 1
    assert canonical("TVmonitor") == "tv" and canonical("dining_table") == "dining table"
    assert len(COCO) == 90 and len(set(COCO) - {"-"}) == 80 and COCO[16] == "cat" and COCO[89] == "toothbrush"
    refused("'p7' asks for 'unicorn', which the detector does not know", counts, [], [{"class": "unicorn", "count": 1}])
    refused("colour 'mauve': known are red", counts, [], [{"class": "cat", "count": 1, "color": "mauve"}])
    refused("position", counts, [], [{"class": "cat", "count": 1, "position": ["near", 0]}])
    assert reward("object_counts")(Group(0, Prompt("p7", "x"), (Sample(), Sample()))) == [None, None]


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


LABELS = {0: "cat", 1: "motorbike", 2: "traffic light"}
QUERIES = 6


@pytest.fixture(scope="module")
def mask2former(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A saved model of the real class, whose heads are random enough to find something."""
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, Mask2FormerImageProcessor, SwinConfig

    torch.manual_seed(0)
    stages = ["stage1", "stage2", "stage3", "stage4"]
    tower: dict[str, Any] = {"image_size": 64, "embed_dim": 8, "depths": [1] * 4, "num_heads": [1] * 4, "window_size": 2}
    swin = SwinConfig(**tower, out_features=stages)  # type: ignore[reportCallIssue] - a backbone's
    sizes = ("feature_size", "mask_feature_size", "hidden_dim", "encoder_feedforward_dim", "dim_feedforward")
    small: dict[str, Any] = dict.fromkeys(sizes, 32)
    config = Mask2FormerConfig(
        backbone_config=swin, **small, encoder_layers=1, decoder_layers=2, num_attention_heads=2, num_queries=QUERIES,
        id2label=LABELS, label2id={name: i for i, name in LABELS.items()},
    )  # fmt: skip
    model: Any = Mask2FormerForUniversalSegmentation(config).eval()
    for head in (model.class_predictor, model.model.transformer_module.decoder.mask_predictor.mask_embedder):
        for weight in head.parameters():
            torch.nn.init.normal_(weight, 0, 1)
    folder = tmp_path_factory.mktemp("mask2former")
    model.save_pretrained(folder)
    Mask2FormerImageProcessor(size={"shortest_edge": 64, "longest_edge": 96}, ignore_index=255).save_pretrained(folder)
    models.release()
    return str(folder)


def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for h, w in ((64, 64), (40, 60), (64, 64))]


def slow(folder: str, picture: Image.Image, threshold: float) -> list[tuple[str, float, tuple[float, ...], Any]]:
    """Every pair of query and class by itself, on outlines that loops measure."""
    from transformers import AutoImageProcessor, Mask2FormerForUniversalSegmentation

    model: Any = Mask2FormerForUniversalSegmentation.from_pretrained(folder).eval()
    inputs = AutoImageProcessor.from_pretrained(folder)(images=[picture], return_tensors="pt")
    with torch.no_grad():
        outputs = model(**inputs)
    enlarged = outputs.masks_queries_logits
    for size in (inputs["pixel_values"].shape[-2:], (picture.height, picture.width)):
        enlarged = torch.nn.functional.interpolate(enlarged, size, mode="bilinear", align_corners=False)
    pairs: list[tuple[float, int, int]] = []
    for query, logits in enumerate(outputs.class_queries_logits[0]):
        odds = logits.exp() / logits.exp().sum()
        pairs += [(float(odds[label]), query, label) for label in LABELS]
    found = []
    for odds, query, label in sorted(pairs, reverse=True)[:QUERIES]:
        inside = [
            (x, y, float(torch.sigmoid(enlarged[0, query, y, x])))
            for y in range(picture.height)
            for x in range(picture.width)
            if enlarged[0, query, y, x] > 0
        ]
        if not inside:
            continue
        score = odds * sum(share for _, _, share in inside) / len(inside)
        mask = np.zeros((picture.height, picture.width), dtype=bool)
        for x, y, _ in inside:
            mask[y, x] = True
        columns, rows = [x for x, _, _ in inside], [y for _, y, _ in inside]
        box = (float(min(columns)), float(min(rows)), float(max(columns) + 1), float(max(rows) + 1))
        if score > threshold:
            found.append(({0: "cat", 1: "motorcycle", 2: "traffic light"}[label], score, box, mask))
    return sorted(found, key=lambda one: -one[1])


def test_outlines_scores_and_boxes_are_those_of_the_slow_formula(mask2former: str):
    detector = detector_of(mask2former)
    assert detector.labels == {"cat", "motorcycle", "traffic light"}
    together, some = detector(pictures(), 0.2), 0
    for picture, found in zip(pictures(), together, strict=True):
        expected = slow(mask2former, picture, 0.2)
        assert [one.label for one in found] == [label for label, *_ in expected]
        for one, (_, score, box, mask) in zip(found, expected, strict=True):
            assert one.score == pytest.approx(score, abs=1e-5) and one.corners == box
            assert one.mask is not None and (one.mask == mask).all()
        some += len(found)
    assert some >= 3 and not any(detector(pictures(), 0.999))


def test_padding_is_cut_off_and_empty_outlines_are_nothing():
    """The model saw 8 x 8 pixels, of which the upper left 4 x 6 are the picture: 2 x 3 pixels large."""
    shown = torch.zeros(8, 8, dtype=torch.bool)
    shown[:4, :6] = True
    logits = torch.full((2, 8, 8), -9.0)
    logits[0, :, 4:] = 9.0
    found = instances_of(torch.tensor([[9.0, 0.0, 0.0], [9.0, 0.0, 0.0]]), logits, shown, (2, 3), 0.3, LABELS)
    assert [(one.label, one.corners) for one in found] == [("cat", (2.0, 0.0, 3.0, 2.0))]
    assert found[0].mask is not None and found[0].mask.tolist() == [[False, False, True]] * 2


def test_the_reward_counts_what_it_finds(mask2former: str, reward: Any):
    columns = {"tag": "counting", "include": [{"class": "cat", "count": 1}]}
    group = Group(0, Prompt("p7", "a cat", columns=columns), tuple(Sample(image=picture) for picture in pictures()))
    scored = reward("object_counts", detector=mask2former, counting_threshold=0.2, batch_size=2)(group)
    expected = [slow(mask2former, picture, 0.2) for picture in pictures()]
    assert [one.parts["objects"] for one in scored] == [len(found) for found in expected]
    assert [one.parts["correct"] for one in scored] == [float(any(label == "cat" for label, *_ in found)) for found in expected]


def named_by_hand(folder: Path, crop: Image.Image, label: str) -> str:
    """The colour whose three sentences lie nearest to the picture, with transformers alone."""
    from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

    model: Any = CLIPModel.from_pretrained(folder).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    best: list[float] = []
    with torch.no_grad():
        seen = model(
            pixel_values=CLIPImageProcessorPil.from_pretrained(folder)(crop, return_tensors="pt")["pixel_values"],
            **tokenizer(["x"], return_tensors="pt"),
        ).image_embeds[0]
        for colour in COLOURS:
            sentences = [
                f"a photo of a {colour} {label}",
                f"a photo of a {colour}-colored {label}",
                f"a photo of a {colour} object",
            ]
            read = []
            for sentence in sentences:
                pixels = torch.zeros(1, 3, 28, 28)
                read.append(model(pixel_values=pixels, **tokenizer([sentence], return_tensors="pt")).text_embeds[0])
            direction = torch.stack([one / one.norm() for one in read]).mean(0)
            best.append(float(direction / direction.norm() @ (seen / seen.norm())))
    return list(COLOURS)[best.index(max(best))]


@pytest.mark.parametrize("outlined", [True, False])
def test_a_clip_names_the_colour_of_what_is_cut_out_on_grey(outlined: bool, clip_folder: Path, reward: Any, monkeypatch: Any):
    rng = np.random.default_rng(1)
    picture = Image.fromarray(rng.integers(0, 256, (100, 100, 3), dtype=np.uint8))
    (found,) = cats(1)
    mask = np.zeros((100, 100), dtype=bool)
    mask[45:55, 5:15] = True
    found = found._replace(mask=mask if outlined else None)
    pixels = np.asarray(picture).copy()
    if outlined:
        pixels[~mask] = 0x99
    wanted = named_by_hand(clip_folder, Image.fromarray(pixels).crop((0, 40, 20, 60)), "cat")
    scored = reward("object_counts", colour=str(clip_folder), device="cpu")
    seen: list[Detection] = [found]
    detector = Detector(frozenset({"cat"}), lambda pictures, threshold: [seen for _ in pictures])
    monkeypatch.setattr(sys.modules[type(scored).__module__], "detector_of", lambda *settings: detector)
    for colour, right in ((wanted, 1.0), (next(name for name in COLOURS if name != wanted), 0.0)):
        columns = {"include": [{"class": "cat", "count": 1, "color": colour}]}
        (score,) = scored(Group(0, Prompt("p", "a cat", columns=columns), (Sample(image=picture),)))
        assert score.parts["correct"] == right
