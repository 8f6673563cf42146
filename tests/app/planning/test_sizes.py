"""`mmrl plan` of published sizes: models of billions of weights, from config files alone, on the cards that the configs name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.real_size import LOAD, SHAPES, Bench, memory_of, rows_of, watch
from benchmarks.shapes import QUESTION, TEXT, stable_diffusion, vlm, vlm_with_weights
from mmrl.app.commands.plan import Plan, draw_up
from mmrl.app.config import run as configs
from mmrl.app.planning.memory import GIB, advice
from mmrl.lab.tiny.text.vlms import build

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


@pytest.mark.evidence
def test_a_narrow_model_is_planned_trained_and_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, place = vlm_with_weights(tmp_path / "model", small=True), tmp_path / "place"
    bench = Bench(SHAPES["vlm"], place, small=True, most=4.0)
    bench.all(model, rows_of("vlm", place), ("plan", "train", "merge"))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in bench.lines]
    assert [line[0] for line in lines] == ["plan", "train", "export --merge"]
    planned, peak = float(lines[1][4]), float(lines[1][2])
    # what narrow models take is the libraries, which the plan found in its own process
    assert peak / 2 < planned < 2 * peak
    assert (place / "merged" / "model.safetensors").is_file() and (place / "run" / "checkpoints").is_dir()
    assert capsys.readouterr().out.count("|") > 20


def test_a_command_that_takes_too_much_is_stopped(tmp_path: Path):
    waste = "x = bytearray(400 * 2**20)\nimport time\ntime.sleep(600)"
    use = watch([sys.executable, "-c", waste], tmp_path / "log", 200 * 2**20)
    assert use.code == -9 and 200 * 2**20 < use.peak < GIB


def test_memory_of_a_process_is_read_and_of_none_is_0():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        own, highest = memory_of(process.pid)
        assert process.stdin is not None
        process.stdin.close()
    assert 0 < own <= highest
    assert memory_of(process.pid) == (0, 0)


def test_what_weights_in_4_bits_take_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Two layers of q and o (32 x 32), k and v (32 x 16), and three matrices of 32 x 64; small blocks have large scales."""
    words = [f"policy.model={build('qwen2_5_vl', tmp_path / 'model')}", "policy.weights=nf4", "policy.lora.rank=2"]
    monkeypatch.setattr(sys, "argv", ["-c", "tiny/image", *words])
    exec(LOAD, {})
    said = capsys.readouterr().out
    assert f" for {2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)} weights in 4 bits, 0.5" in said and " GiB beside" in said
