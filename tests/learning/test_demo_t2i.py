"""The demo of pictures on one seed, shortened: reinforcement on a real Stable Diffusion 3 class, judged on unseen captions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmrl.app.export.export import export
from mmrl.data.drawn.shapes import HELD_OUT, Sketches
from mmrl.lab import demos as demo
from mmrl.lab.tiny.flow.generator import WarmStart, warm_start


@pytest.mark.evidence
def test_demo_learns_to_draw_unseen_captions(tmp_path: Path):
    short = replace(WarmStart(data=Sketches(), max_tokens=8), vae_steps=500, steps=450)
    model = warm_start(short, tmp_path / "model")
    words = ["steps=24", "evaluate_every=0", "evaluation.num_samples=8", f"policy.model={str(model)!r}"]
    run = demo.run("t2i", tmp_path / "run", seed=0, overrides=words)
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    before, after = (line for line in lines if "eval/shapes" in line)
    assert after["eval/shapes"] > before["eval/shapes"] + 0.06
    assert after["eval/shapes/background"] > before["eval/shapes/background"] + 0.05
    assert run.report_file.is_file()
    samples = [json.loads(line) for line in run.samples_file("eval", 24).read_text().splitlines()]
    assert {sample["text"] for sample in samples} == {wish.caption for wish in HELD_OUT}

    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    pipeline: Any = DiffusionPipeline.from_pretrained(model, text_encoder_3=None, tokenizer_3=None)
    pipeline.load_lora_weights(str(export(run.path, tmp_path / "exported")))
    assert "default_0" in pipeline.transformer.peft_config
