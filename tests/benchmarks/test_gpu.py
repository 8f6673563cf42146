"""benchmarks/gpu.py on a CPU: the same code on tiny models, the clock, and models of published sizes."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmrl.app.run.launch import open_accelerator
from mmrl.lab.tiny import byte_tokens
from mmrl.lab.tiny.text import vlms

ROOT = Path(__file__).parents[2]


def run(gpu, monkeypatch, *words: str) -> None:
    """Call the script as its command does."""
    monkeypatch.setattr(sys, "argv", ["benchmarks/gpu.py", *words])
    monkeypatch.syspath_prepend(str(ROOT))
    gpu.main()


def test_the_whole_script_runs_tiny(script, monkeypatch, tmp_path, capsys):
    gpu = script("gpu")
    monkeypatch.setattr(gpu, "METHODS", gpu.METHODS[:1])
    run(gpu, monkeypatch, "--tiny", "--minutes", "60", "--out", str(tmp_path), "--only", "vlm", "nf4", "images")
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [row.get("error") for row in rows] == [None] * 5
    assert {row["name"].split(",")[0] for row in rows} == {"VLM", "VLM of 7B", "images of 16"}
    assert all(row["tflop"] > 0 and row["update_s"] < row["step_s"] and row["mfu"] is None for row in rows)
    assert all(0 < row["share"] < 1 for row in rows if row["part"].startswith("images"))
    table = (tmp_path / "gpu.md").read_text()
    assert table in capsys.readouterr().out and table.count("\n| ") == 6 and "--tiny` on CPU, torch" in table


def test_without_a_card_it_says_what_to_do(script, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="no GPU is here: run it on a machine with one, or add --tiny"):
        run(script("gpu"), monkeypatch, "--out", str(tmp_path), "--only", "vlm")


def test_the_minutes_are_kept(script, tmp_path):
    gpu = script("gpu")
    session = gpu.Session(tmp_path, minutes=10.0)
    session.measure("vlm", "first", lambda: {"step_s": 1.0, "mfu": 0.25})
    session.longest["vlm"] = session.left()
    session.measure("vlm", "too long", lambda: pytest.fail("there was no time for it"))
    session.measure("images", "broken", lambda: {}[1])
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [row.get("error") for row in rows] == [None, "not measured: out of time", "KeyError: 1"]
    table = (tmp_path / "gpu.md").read_text()
    assert "| first | 1.00 |  |  |  | 25.0% |  |  |\n| too long | not measured: out of time |" in table


def test_what_hangs_is_broken_off(script, tmp_path):
    gpu = script("gpu")
    with pytest.raises(TimeoutError, match="the minutes were over"), gpu.stopped_after(0.0):
        while True:
            pass
    assert gpu.Session(tmp_path, minutes=10.0).attempt(lambda: {"a": 1}) == {"a": 1}


def test_pytest_s_own_count_is_the_result(script):
    summary = script("gpu").pytest_summary
    assert summary(["..", "=== 2 passed, 1 skipped in 3.10s ==="]) == "2 passed, 1 skipped in 3.10s"
    assert summary(["no tests ran in 0.01s"]) == "no tests ran in 0.01s"
    assert summary([]) == "pytest said nothing"


def test_peaks_of_known_cards(script):
    peak = script("gpu_measures").peak_flops
    assert peak("NVIDIA H100 80GB HBM3") == peak("NVIDIA H200") == 989e12
    assert peak("NVIDIA H100 PCIe") == 756e12 and peak("NVIDIA L40S") == 362e12 and peak("NVIDIA L4") == 121e12
    assert peak("NVIDIA A100-SXM4-80GB") == 312e12 and peak("NVIDIA A10G") == 70e12
    assert peak("A card of next year") is None


def test_layers_computed_again_are_not_needed(script, tmp_path):
    """The operations that an update needs are the same with checkpointing and without, but for the head, read again in F."""
    measures, models = script("gpu_measures"), script("gpu_models")
    card, sizes = measures.Card(open_accelerator()), replace(measures.TINY, prompts=2, picture=2)
    model = models.vlm(tmp_path / "vlm", card.device, True)
    off, on = (measures.text(card, model, sizes, checkpointing, "repeated")["tflop"] for checkpointing in (False, True))
    # the head is read again in chunks too
    assert 0.75 * off < on <= 1.02 * off


def test_models_have_their_published_sizes(script, tmp_path):
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    models = script("gpu_models")
    vlms.build("qwen2_5_vl", tmp_path)
    with models.made_on(torch.device("meta"), torch.bfloat16):
        vlm = Qwen2_5_VLForConditionalGeneration(models.published_vlm(Qwen2_5_VLConfig.from_pretrained(tmp_path)))
        large = Qwen2_5_VLForConditionalGeneration(models.published_vlm(Qwen2_5_VLConfig.from_pretrained(tmp_path), is_7b=True))
        images = byte_tokens.hub("SD3Transformer2DModel", **models.SD35_MEDIUM)
    assert sum(weight.numel() for weight in vlm.parameters()) == 3_754_622_976
    assert sum(weight.numel() for weight in large.parameters()) == 8_292_166_656
    assert sum(weight.numel() for weight in images.parameters()) == 2_243_171_520
    assert next(vlm.parameters()).dtype == torch.bfloat16 and torch.get_default_dtype() == torch.float32


def test_the_vocabulary_is_filled_and_every_token_can_be_written(script, tmp_path):
    from transformers import AutoProcessor

    vlms.build("qwen2_5_vl", tmp_path)
    before = AutoProcessor.from_pretrained(tmp_path).tokenizer
    script("gpu_models").fill_vocabulary(tmp_path / "tokenizer.json", 5000)
    after = AutoProcessor.from_pretrained(tmp_path).tokenizer
    assert len(after) == 5000
    assert after.image_token_id == before.image_token_id and after.eos_token_id == before.eos_token_id
    text = "<|im_start|>user\nwhere? w4999<|im_end|>"
    assert after(text).input_ids == before(text).input_ids
    assert after.decode([4999]) == "w4999"


def test_too_many_wheels_are_refused(script, tmp_path):
    wheels = script("gpu_wheels")
    small, large = tmp_path / "a.whl", tmp_path / "b.whl"
    small.write_bytes(b"x" * 100)
    with large.open("wb") as file:
        file.truncate(wheels.MOST)
    assert wheels.refuse_too_much([small]) == 100
    with pytest.raises(SystemExit, match=r"the wheels are 50\.0 MiB, more than 50: .* or take b\.whl out of NEEDED"):
        wheels.refuse_too_much([small, large])
