"""The demo on one seed, shortened: GRPO on a real Qwen3-VL class raises the overlap of its boxes on held-out pictures."""

import json
from pathlib import Path

import pytest

from mmrl.app.export.export import export
from mmrl.lab import demos as demo


@pytest.mark.evidence
def test_demo_learns_and_exports(tmp_path: Path):
    short = ["steps=60", "evaluate_every=0", "evaluation.num_prompts=128", "evaluation.data.size=128", "data.size=1024"]
    run = demo.run("grounding", tmp_path / "run", seed=0, overrides=short)
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    evaluations = [line["eval/iou"] for line in lines if "eval/iou" in line]
    assert len(evaluations) == 2
    assert evaluations[1] > evaluations[0] + 0.03
    assert run.report_file.is_file()

    from transformers import AutoModelForImageTextToText, AutoProcessor

    folder = export(run.path, tmp_path / "exported")
    assert AutoModelForImageTextToText.from_pretrained(folder).config.model_type == "qwen3_vl"
    assert AutoProcessor.from_pretrained(folder).image_processor is not None
