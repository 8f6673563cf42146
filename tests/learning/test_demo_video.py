"""The demo of clips on one seed, shortened: TW-GRPO on a real Qwen3-VL class raises the overlap of spans in held-out clips."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mmrl.app.commands import demo
from mmrl.tiny.clips import WarmStart, warm_start


@pytest.mark.slow
def test_video_demo_learns_and_shows_film_strips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path))
    taught = warm_start(replace(WarmStart(), steps=120, num_clips=400))
    short = ["steps=25", "evaluate_every=0", "samples_every=15", "data.size=256"]
    short += [f"{key}=96" for key in ("evaluation.num_prompts", "evaluation.data.size")]
    run = demo.run("video", tmp_path / "run", seed=0, overrides=[f"policy.model={str(taught)!r}", *short])
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    before, after = (line for line in lines if "eval/total" in line)
    assert after["eval/by_type/span"] > before["eval/by_type/span"] + 0.015
    assert after["eval/by_type/format"] == 1.0 and after["eval/completion_length"] < 10
    page = run.report_file.read_text()
    assert page.count('<i class="predicted"') >= 4 and "R@0.7" in page
