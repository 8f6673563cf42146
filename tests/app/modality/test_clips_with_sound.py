"""A run of clips with sound from its config to its export: samples, report, a drawn file, a plan, rewards of either."""

import json
import math
import wave
from pathlib import Path
from typing import Any

import pytest

from mmrl.app.commands.train import TrainArguments, run_training, train
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.export.export import export
from mmrl.app.one_prompt import draw
from mmrl.app.run.build import build
from mmrl.lab.tiny.flow.pipelines import build as build_tiny
from mmrl.policies.flow.dry_run import FlowDryRun
from mmrl.policies.flow.settings import FlowPolicyConfig
from tests.support.flow_runs import Make, train_steps, with_preset

ROWS = [{"prompt": "a bell", "span": [0, 0.1]}, {"prompt": "a dog barks", "span": [0.1, 0.2]}]
SIZES = ["policy.height=32", "policy.width=32", "policy.frames=5", "policy.fps=20.0", "policy.max_prompt_tokens=16"]


@pytest.fixture(autouse=True)
def rows(empty_desk: None) -> None:
    for name in ("train", "test"):
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, ROWS)))


def heard(file: Path) -> tuple[int, int, int]:
    with wave.open(str(file)) as opened:
        return opened.getframerate(), opened.getnchannels(), opened.getnframes()


def of_tiny(*words: str) -> Resolved:
    """The shipped config, drawn small."""
    rows = {"use": "prompts", "path": "train.jsonl"}
    few = [
        "prompts_per_step=1",
        "evaluation.num_prompts=1",
        "evaluation.num_steps=2",
        "policy.model=tiny:ltx2",
        "policy.dtype=float32",
    ]
    resolved = configs.load("t2v/ltx2_sound_flowgrpo", [*SIZES, *few, *words])
    for place in (("data",), ("evaluation", "data")):
        resolved.table.set(place, rows, "test")
    return configs.resolve(resolved.table)


def test_a_run_draws_and_exports_clips_with_sound(tmp_path: Path):
    both = 'reward=[{use="onset_iou"}, {use="in_sync"}]'
    model = f"policy.model={build_tiny('ltx2', tmp_path / 'model')}"
    run = run_training(of_tiny(model, "steps=1", "algorithm.group_size=2", "policy.lora={rank = 2}", both, "output=run"))
    line = json.loads(run.samples_file("train", 1).read_text().splitlines()[0])
    assert heard(run.samples / line["sound"]["sound"]) == (400, 2, 100)
    assert (run.samples / line["video"]["clip"]).is_file() and line["image"] is None
    assert set(line["scores"]) == {"onset_iou", "in_sync"} and set(line["status"].values()) == {"ok"}
    page = run.report_file.read_text()
    assert "data:audio/wav;base64," in page and "data:video/mp4;base64," in page
    facts = draw(run.path, "a bell", out=Path("bell.mp4"))
    assert (facts["frames"], facts["rate"], facts["samples"]) == (5, 400, 100) and heard(Path("bell.wav")) == (400, 2, 100)
    with pytest.raises(FileExistsError, match=r"bell\.wav exists already"):
        Path("bell.mp4").unlink()
        draw(run.path, "a bell", out=Path("bell.mp4"))
    card = (export(run.path, tmp_path / "out") / "README.md").read_text()
    assert "pipeline_tag: text-to-video" in card
    scope: dict[str, Any] = {}
    exec(card.split("```python\n")[1].split("```")[0].replace("THIS_FOLDER", str(tmp_path / "out")), scope)
    assert any("lora_" in name for name, _ in scope["pipeline"].transformer.named_parameters())


@pytest.mark.parametrize("rests", [True, False])
def test_every_part_takes_room(rests: bool, tmp_path: Path):
    """A text encoder that rests in the host's memory takes some only while it reads."""
    model = str(build_tiny("ltx2", tmp_path / "model"))
    given = FlowPolicyConfig(model, height=32, width=32, frames=5, sound=True, max_prompt_tokens=16, rest_text_encoders=rests)
    reader = set() if rests else {"text_encoder"}
    found = FlowDryRun(given).beside()
    assert found.keys() == {"vae", "audio_vae", "connectors", "vocoder"} | reader and min(found.values()) > 0


def test_clip_and_sound_train_apart_in_a_run(tmp_path: Path):
    rewards = 'reward=[{use="band_energy", low=1, high=100}, {use="smooth_motion"}]'
    names = ['algorithm.advantage.of_sound=["band_energy"]', 'algorithm.advantage.of_clip=["smooth_motion"]']
    own = ["algorithm={preset='omninft'}", *names, "algorithm.schedule.num_steps=4", "algorithm.schedule.times.count=2"]
    words = [f"policy.model={build_tiny('ltx2', tmp_path / 'model')}", *own, "algorithm.group_size=2", rewards, "steps=1"]
    job = build(of_tiny(*words, "prompts_per_step=2", "output=apart"))
    [metrics] = train_steps(job)
    assert math.isfinite(metrics["reward/total"]) and metrics["policy/grad_norm"] > 0


@pytest.mark.evidence
@pytest.mark.parametrize("name", ["flow_grpo", "mix_grpo", "branch_grpo", "diffusion_nft", "dance_grpo"])
def test_every_method_takes_two_steps(make: Make, name: str):
    """With guidance, an adapter and rewards of both; the ratio gate (1e-6) passes."""
    rewards = 'reward=[{use="band_energy", low=1, high=100}, {use="smooth_motion"}]'
    job = build(with_preset(make, name, "policy.model=tiny:ltx2", "policy.guidance=2.0", "policy.sound=true", *SIZES, rewards))
    for metrics in train_steps(job, 2):
        assert math.isfinite(metrics["reward/total"])


def test_a_line_trains_draws_and_exports_sounds(tmp_path: Path):
    rows = [{"prompt": "a hum", "band": [0, 3], "span": [0.25, 0.75]}, {"prompt": "a bell", "band": [3, 8], "span": [0, 0.5]}]
    for name in ("train", "test"):
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model = str(build_tiny("stable_audio3", tmp_path / "model"))
    few = ["steps=1", "algorithm.group_size=2", "prompts_per_step=2", "policy.seconds=1.0", "evaluation.num_prompts=1"]
    words = [*few, "policy.lora={rank = 2}"]
    run = train(TrainArguments(words, "t2a", model, "train.jsonl", ["band_energy", "onset_iou"]))
    line = json.loads(run.samples_file("train", 1).read_text().splitlines()[0])
    assert heard(run.samples / line["sound"]["sound"]) == (16, 2, 16)
    assert set(line["scores"]) == {"band_energy", "onset_iou"} and line["image"] is None and line["video"] is None
    assert "data:audio/wav;base64," in run.report_file.read_text()
    facts = draw(run.path, "a hum", out=Path("hum.wav"))
    assert heard(Path("hum.wav")) == (16, 2, 16) and facts["rate"] == facts["samples"] == 16
    with pytest.raises(ValueError, match=r"\.wav"):
        draw(run.path, "a hum", out=Path("hum.png"))
    folder = export(run.path, tmp_path / "out")
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: text-to-audio" in card and "1 s, " in card
    scope: dict[str, Any] = {}
    exec(card.split("```python\n")[1].split("```")[0].replace("THIS_FOLDER", str(folder)), scope)
    assert any("lora_" in name for name, _ in scope["pipeline"].transformer.named_parameters())
