"""The demo of text in pictures on one seed, shortened: a real recogniser reads more of the unseen numbers after reinforcement."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from mmrl.data.drawn.digit_text import HELD_OUT, Prints, caption
from mmrl.lab import demos as demo
from mmrl.lab.tiny.flow.generator import WarmStart, warm_start

MISSING = [name for name in ("onnxruntime", "rapidocr_onnxruntime", "rapidfuzz", "matplotlib") if find_spec(name) is None]


@pytest.mark.evidence
@pytest.mark.real_weights
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}")
def test_demo_learns_to_write_unseen_numbers(tmp_path: Path):
    # cleaner prints than the demo's: with those it takes three times as long before rewards tell pictures apart
    short = replace(WarmStart(data=Prints(confused=0.4, smeared=0.0), patch=2, max_tokens=6), vae_steps=600, steps=500)
    model = warm_start(short, tmp_path / "model")
    words = [
        "steps=16",
        "evaluate_every=0",
        "evaluation.num_samples=8",
        "optimizer.lr_schedule=constant",
        f"policy.model={str(model)!r}",
    ]
    run = demo.run("t2i-text", tmp_path / "run", seed=0, overrides=words)
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    before, after = (line for line in lines if "eval/ocr" in line)
    assert after["eval/ocr"] > before["eval/ocr"] + 0.08
    assert after["eval/ocr/exact"] > before["eval/ocr/exact"]
    gallery = sorted((run.path / "samples").glob("eval*.jsonl"))[-1]
    samples = [json.loads(line) for line in gallery.read_text().splitlines()]
    assert {sample["text"] for sample in samples} == {caption(number) for number in HELD_OUT}
