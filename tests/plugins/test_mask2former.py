"""GenEval's own judge: a real Mask2Former class finds outlines, and a CLIP names the colour of what they hold."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.types import Group, Prompt, Sample
from mmrl.serving.scorers import models
from mmrl.serving.scorers.detectors import COLOURS, Detection, Detector, detector_of, instances_of
from tests.plugins.test_object_counts import cats

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


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny CLIP of the real class."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    from mmrl.lab.tiny.flow.pipeline_parts import clip_tokenizer

    torch.manual_seed(3)
    tokenizer: Any = clip_tokenizer()
    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = tower | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "max_position_embeddings": 77}
    config = CLIPConfig(text_config=text, vision_config=tower | {"image_size": 16, "patch_size": 4}, projection_dim=8)
    model: Any = CLIPModel(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 0, 0.5)
    folder: Path = tmp_path_factory.mktemp("clip")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}).save_pretrained(folder)
    return str(folder)


def named_by_hand(folder: str, crop: Image.Image, label: str) -> str:
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
                pixels = torch.zeros(1, 3, 16, 16)
                read.append(model(pixel_values=pixels, **tokenizer([sentence], return_tensors="pt")).text_embeds[0])
            direction = torch.stack([one / one.norm() for one in read]).mean(0)
            best.append(float(direction / direction.norm() @ (seen / seen.norm())))
    return list(COLOURS)[best.index(max(best))]


@pytest.mark.parametrize("outlined", [True, False])
def test_a_clip_names_the_colour_of_what_is_cut_out_on_grey(outlined: bool, clip: str, reward: Any, monkeypatch: Any):
    rng = np.random.default_rng(1)
    picture = Image.fromarray(rng.integers(0, 256, (100, 100, 3), dtype=np.uint8))
    (found,) = cats(1)
    mask = np.zeros((100, 100), dtype=bool)
    mask[45:55, 5:15] = True
    found = found._replace(mask=mask if outlined else None)
    pixels = np.asarray(picture).copy()
    if outlined:
        pixels[~mask] = 0x99
    wanted = named_by_hand(clip, Image.fromarray(pixels).crop((0, 40, 20, 60)), "cat")
    scored = reward("object_counts", colour=clip, device="cpu")
    seen: list[Detection] = [found]
    detector = Detector(frozenset({"cat"}), lambda pictures, threshold: [seen for _ in pictures])
    monkeypatch.setattr(sys.modules[type(scored).__module__], "detector_of", lambda *settings: detector)
    for colour, right in ((wanted, 1.0), (next(name for name in COLOURS if name != wanted), 0.0)):
        columns = {"include": [{"class": "cat", "count": 1, "color": colour}]}
        (score,) = scored(Group(0, Prompt("p", "a cat", columns=columns), (Sample(image=picture),)))
        assert score.parts["correct"] == right
