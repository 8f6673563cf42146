"""The demo of clips on one seed, shortened: TW-GRPO on a real Qwen3-VL class raises the overlap of spans in held-out clips."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mmrl.app.commands import demo
from mmrl.tiny.text.clips import STYLE, WarmStart, warm_start


@pytest.mark.evidence
def test_video_demo_learns_and_shows_film_strips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path))
    # one digit in a clip, and spans alone: gains over seeds are many times their spread, those of the demo's own mix are not
    style = replace(STYLE, shown=(1, 1))
    taught = warm_start(replace(WarmStart(), steps=200, num_clips=400, questions=("when",), style=style))
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
