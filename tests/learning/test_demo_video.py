"""The demo of clips on one seed, shortened: TW-GRPO on a real Qwen3-VL class raises the overlap of spans in held-out clips."""

import json
from pathlib import Path

import pytest

from mmrl.app.config import run as configs
from mmrl.lab import demos as demo
from mmrl.lab.models import teach
from mmrl.lab.tiny.taught import SPANS


@pytest.mark.evidence
def test_video_demo_learns_and_shows_film_strips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path))
    # one digit in a clip, and spans alone: gains over seeds are many times their spread, those of the demo's own mix are not
    taught, alone = (
        tmp_path / "taught",
        ['data.questions=["when"]', "data.clip.shown=[1,1]", "data.size=400", "stage.0.steps=200"],
    )
    words = [*SPANS.words(0, False), f"policy.model={str(SPANS.build(tmp_path / 'untaught', 0))!r}", *alone]
    teach(configs.load(SPANS.config, words), taught, None)
    short = ["steps=30", "evaluate_every=0", "samples_every=15", "optimizer.lr=1e-3", "optimizer.lr_schedule=constant"]
    for data, size in (("data", 400), ("evaluation.data", 192)):
        short += [f'{data}.questions=["when"]', f"{data}.clip.shown=[1,1]", f"{data}.size={size}"]
    short += ["evaluation.num_prompts=192"]
    run = demo.run("video", tmp_path / "run", seed=0, overrides=[f"policy.model={str(taught)!r}", *short])
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    before, after = (line for line in lines if "eval/total" in line)
    assert after["eval/by_type/span"] > before["eval/by_type/span"] + 0.015
    assert after["eval/by_type/format"] == 1.0 and after["eval/completion_length"] < 10
    page = run.report_file.read_text()
    assert page.count('<i class="predicted"') >= 4 and "R@0.7" in page
