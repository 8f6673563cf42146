"""The demo of clips made small, with its teaching: reinforcement on a real Wan class, judged on combinations nobody trained on."""

import json
from pathlib import Path

import diffusers
import pytest

from mmrl.app.commands import demo
from mmrl.app.commands.export import export
from mmrl.data.drawn.gliding import HELD_OUT, Glides
from mmrl.tiny.clip_generator import WarmStart, warm_start

SIDE = 16
SMALL = WarmStart(
    # Somewhat cleaner than the demo's clips, so that few steps of imitation are enough.
    data=Glides(side=SIDE, confused=0.4, flickering=0.3),
    pool=1536,
    vae_steps=150,
    vae_pool=512,
    steps=1000,
    lr=2e-3,
    halvings=2,
    latents=8,
    layers=2,
    heads=4,
    feed_forward=256,
    text_width=32,
)
"""0.5 M weights."""


@pytest.mark.slow
def test_a_small_demo_learns_to_move_unseen_shapes(tmp_path: Path):
    # SECONDS CPU seconds; seeds 0, 1 and 2 rose by A, B and C, `way` by D, E and F.
    model = warm_start(SMALL, tmp_path / "model")
    size = [f"policy.{side}={SIDE}" for side in ("height", "width")]
    words = ["steps=40", "evaluate_every=0", "evaluation.num_samples=8", "optimizer.lr=2e-3", f"policy.model={str(model)!r}"]
    run = demo.run("t2v", tmp_path / "run", seed=0, overrides=[*size, *words])
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    before, after = (line for line in lines if "eval/gliding_shapes" in line)
    assert after["eval/gliding_shapes"] > before["eval/gliding_shapes"] + 0.08
    assert after["eval/gliding_shapes/way"] > before["eval/gliding_shapes/way"] + 0.15
    samples = [json.loads(line) for line in run.samples_file("eval", 40).read_text().splitlines()]
    assert {sample["text"] for sample in samples} == {glide.caption for glide in HELD_OUT}
    assert all((run.samples / sample["video"]["clip"]).is_file() for sample in samples)
    assert "data:video/mp4;base64," in run.report_file.read_text()
    pipeline = diffusers.WanPipeline.from_pretrained(model)  # type: ignore[reportPrivateImportUsage]
    pipeline.load_lora_weights(str(export(run.path, tmp_path / "exported")))
    assert "default_0" in pipeline.transformer.peft_config
