"""`mmrl plan` of published sizes: models of billions of weights, from config files alone, on the cards that the configs name."""

import json
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.shapes import QUESTION, TEXT, stable_diffusion, vlm
from mmrl.app.commands.plan import Plan, draw_up
from mmrl.app.config import run as configs
from mmrl.app.planning.memory import GIB, advice

VLMS = [("qwen25_3b", "image/qwen25vl_3b_refcoco_24gb", 24), ("qwen3_4b", "image/qwen3vl_4b_refcoco_80gb", 80)]
"""A model's shape, a config for it, and the GB of the card that the config names."""


def planned(tmp_path: Path, name: str, config: str, *words: str) -> Plan:
    """Of a config of referring expressions: pictures of the size that most of COCO's have."""
    row = {"question": QUESTION, "box": [10, 20, 200, 180]}
    rows = [{"image": f"{i}.png", "split": "val" if i % 2 else "train", **row} for i in range(80)]
    for i in range(80):
        Image.new("RGB", (640, 480), (i, 0, 0)).save(tmp_path / f"{i}.png")
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    data = [f"{where}.path='{tmp_path / 'rows.jsonl'}'" for where in ("data", "evaluation.data")]
    return draw_up(configs.load(config, [f"policy.model='{vlm(tmp_path / name, name)}'", *data, *words]))


@pytest.mark.slow
@pytest.mark.usefixtures("what_stays")
@pytest.mark.parametrize(("name", "config", "card"), VLMS)
def test_vision_language_models_have_their_published_weights(name, config, card, tmp_path):
    made = planned(tmp_path, name, config)
    adapter = made.memory.trained if "weights in bfloat16" in made.memory.stays else 0
    assert made.memory.parameters - adapter == pytest.approx(TEXT[name][3], rel=1e-3)
    assert advice(made.memory, card * GIB, is_text=True) is None


@pytest.mark.evidence
@pytest.mark.parametrize(("name", "config", "card"), VLMS)
def test_vision_language_models_fit_the_cards_of_their_configs(name, config, card, tmp_path):
    assert advice(planned(tmp_path, name, config).memory, card * GIB, is_text=True) is None


@pytest.mark.slow
@pytest.mark.usefixtures("what_stays")
def test_a_larger_model_is_told_apart(tmp_path):
    made = planned(tmp_path, "qwen25_7b", "image/qwen25vl_3b_refcoco_24gb")
    assert made.memory.parameters - made.memory.trained == pytest.approx(8.292e9, rel=1e-3)
    assert made.memory.stays["weights in bfloat16"] == pytest.approx(2 * 8.292e9, rel=1e-3)
    assert "weights in bfloat16 15.4" in (advice(made.memory, 16 * GIB, is_text=True) or "")


def planned_generator(tmp_path: Path) -> Plan:
    folder, lines = stable_diffusion(tmp_path / "sd35"), [f"a red fox, {i}" for i in range(40)]
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    data = [f"data.path='{tmp_path / 'train.txt'}'", f"evaluation.data.path='{tmp_path / 'test.txt'}'"]
    return draw_up(configs.load("t2i/sd35_medium_pickscore", [f"policy.model='{folder}'", *data]))


@pytest.mark.slow
@pytest.mark.usefixtures("what_stays")
def test_an_image_generator_with_its_encoders(tmp_path):
    memory = planned_generator(tmp_path).memory
    assert memory.parameters - memory.trained == pytest.approx(2.243e9, rel=0.02)
    # CLIP's two and T5 in bfloat16
    encoders = [memory.stays[name] for name in ("text_encoder", "text_encoder_2", "text_encoder_3")]
    assert encoders == pytest.approx([2 * 0.1237e9, 2 * 0.6947e9, 2 * 4.762e9], rel=0.01)
    assert memory.stays["vae"] == pytest.approx(4 * 83.8e6, rel=0.01)


@pytest.mark.evidence
def test_an_image_generator_fits_the_card_of_its_config(tmp_path):
    assert advice(planned_generator(tmp_path).memory, 24 * GIB, is_text=False) is None
