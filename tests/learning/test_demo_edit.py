"""The demo of edits: one seed to its end, judged on unseen pairs of picture and instruction, and its adapter in diffusers."""

import json
from pathlib import Path
from typing import Any

import pytest

from mmrl.app.commands import demo
from mmrl.app.commands.export import export
from mmrl.data.drawn.shape_edits import INSTRUCTIONS


@pytest.mark.evidence
def test_demo_learns_edits_of_unseen_pairs(tmp_path: Path):
    model = demo.taught_model("edit", seed=1)
    words = ["steps=40", "evaluate_every=0", f"policy.model={str(model)!r}"]
    run = demo.run("edit", tmp_path / "run", seed=1, overrides=words)
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    before, after = (line for line in lines if "eval/shape_edits" in line)
    assert after["eval/shape_edits"] > before["eval/shape_edits"] + 0.08
    assert after["eval/shape_edits/kept"] > before["eval/shape_edits/kept"] + 0.05
    samples = [json.loads(line) for line in run.samples_file("eval", 40).read_text().splitlines()]
    assert {sample["text"] for sample in samples} == {instruction.text for instruction in INSTRUCTIONS}
    assert '<p class="label">source</p>' in run.report_file.read_text()

    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    pipeline: Any = DiffusionPipeline.from_pretrained(model)
    pipeline.load_lora_weights(str(export(run.path, tmp_path / "exported")))
    assert "default_0" in pipeline.transformer.peft_config
