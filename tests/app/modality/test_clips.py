"""Clips through the commands, silent and with sound, and sounds alone: trained from a config, planned, shown and exported."""

import json
import math
import wave
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from mmrl.app.commands import plan
from mmrl.app.commands.options import ScoreOptions
from mmrl.app.commands.reward import score
from mmrl.app.commands.train import TrainArguments, run_training, train
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.export.export import check_form, export
from mmrl.app.modality.flow import FlowModality
from mmrl.app.one_prompt import draw
from mmrl.app.report.page import write_report
from mmrl.app.run import build as building
from mmrl.app.run.build import build
from mmrl.app.run.folder import RunDir
from mmrl.data.drawn import gliding
from mmrl.data.drawn.shapes import to_bytes
from mmrl.data.files.mp4 import read_mp4, write_mp4
from mmrl.lab.tiny.flow.pipelines import build as build_tiny
from mmrl.policies.flow.dry_run import FlowDryRun
from mmrl.policies.flow.settings import FlowPolicyConfig
from tests.support.flow_runs import Make, loaded_by_card, train_steps, with_preset
from tests.support.refused import refused

METHODS = ("flow_grpo", "mix_grpo", "branch_grpo", "diffusion_nft", "dance_grpo")
OVER = 'reward=[{use="over_frames", frames=2, picture={use="jpeg_size", scale=0.1}}]'
CLIPS = ["policy.height=32", "policy.width=32", "policy.frames=5", "policy.max_prompt_tokens=12", "policy.lora.rank=2"]


def of_wan(family: str, *words: str) -> list[str]:
    """Overrides for clips of a tiny Wan, with guidance and an adapter."""
    return [f"policy.model=tiny:{family}", "policy.guidance=2.0", *CLIPS, OVER, *words]


OFTEN = {("flow_grpo", "hunyuan15"), *((name, family) for name in ("flow_grpo", "diffusion_nft") for family in ("wan", "wan_5b"))}
OFTEN |= {(name, "wan_a14b") for name in METHODS}
WAYS = [(name, family) for name in METHODS for family in ("wan", "wan_5b", "wan_a14b")] + [("flow_grpo", "hunyuan15")]


@pytest.mark.parametrize(
    ("name", "family"), [pytest.param(*way, marks=() if way in OFTEN else pytest.mark.evidence) for way in WAYS]
)
def test_every_family_takes_two_steps_of_every_method(make: Make, name: str, family: str):
    """With guidance and an adapter; the ratio gate (1e-6) passes."""
    job = build(with_preset(make, name, *of_wan(family)))
    for metrics in train_steps(job, 2):
        assert math.isfinite(metrics["reward/total"])
        assert 0 < metrics["train/diversity"] < 1 and 0 < metrics["reward/over_frames/change"] < 1


def test_one_line_trains_on_clips():
    """The task's own settings but for sizes; held-out captions lie next to those that train."""
    for name, ways in (("train", ("left", "right")), ("test", ("up",))):
        Path(f"{name}.txt").write_text("\n".join(f"a red circle glides {way}" for way in ways))
    small = [word for word in CLIPS if "lora" not in word] + ["algorithm.group_size=4", "prompts_per_step=2", "steps=1"]
    run = train(TrainArguments(small, "t2v", "tiny:wan", "train.txt", ["smooth_motion"], output=Path("run")))
    config = configs.load(str(run.config_file)).config
    assert config.algorithm.preset == "flow_grpo_fast" and config.evaluation.data is not None
    lines = run.read_metrics().lines
    assert len([line for line in lines if 0 < line.get("eval/smooth_motion", 0) <= 1]) == 2, "before and after"
    assert any(0 < line.get("reward/smooth_motion", 0) <= 1 for line in lines)
    [line, *_] = [json.loads(line) for line in run.samples_file("eval", 1).read_text().splitlines()]
    assert read_mp4(run.samples / line["video"]["clip"])[0].shape == (5, 32, 32, 3)


def test_a_run_of_clips_leaves_strips_films_and_an_adapter(make: Make, tmp_path: Path):
    resolved = make(*of_wan("wan"), "steps=2", "policy.fps=8", f"output={str(tmp_path / 'run')!r}")
    run: RunDir = run_training(resolved)
    lines = [json.loads(line) for line in run.samples_file("train", 1).read_text().splitlines()]
    video = lines[0]["video"]
    assert video["kind"] == "video" and lines[0]["image"] is None and lines[0]["digest"]
    film, fps = read_mp4(run.samples / video["clip"])
    assert film.shape == (5, 32, 32, 3) and fps == 8
    assert (run.samples / video["file"]).is_file()
    assert len({line["video"]["clip"] for line in lines}) == len(lines)
    page = write_report(run.path).read_text()
    assert 'src="data:video/mp4;base64,' in page and "media-src data:" in page
    out = tmp_path / "out"
    export(run.path, out)
    assert "text-to-video" in (out / "README.md").read_text()


@pytest.mark.parametrize("merge", [False, True], ids=["adapter", "merged"])
def test_an_export_of_two_experts_holds_both(make: Make, tmp_path: Path, merge: bool):
    words = ["steps=1", "algorithm.schedule.num_steps=6", "optimizer.lr=1e-2"]
    resolved = make(*of_wan("wan_a14b"), *words, f"output={str(tmp_path / 'run')!r}")
    run, out = run_training(resolved), tmp_path / "out"
    export(run.path, out, merge=merge)
    card = (out / "README.md").read_text()
    base = configs.load(str(run.config_file)).config
    folder = building.with_local_model(base).policy.model
    pipeline: Any = diffusers.WanPipeline.from_pretrained(out if merge else folder)  # type: ignore[reportPrivateImportUsage]
    plain: Any = diffusers.WanPipeline.from_pretrained(folder)  # type: ignore[reportPrivateImportUsage]
    if not merge:
        assert 'load_lora_weights("THIS_FOLDER/transformer_2", load_into_transformer_2=True)' in card
        pipeline.load_lora_weights(out)
        pipeline.load_lora_weights(out / "transformer_2", load_into_transformer_2=True)
    assert pipeline.config.boundary_ratio == 0.6
    x, t, text = torch.randn(1, 4, 2, 4, 4), torch.tensor([500.0]), torch.randn(1, 12, 32)
    for name in ("transformer", "transformer_2"):
        moved, before = (getattr(one, name)(x, t, text, return_dict=False)[0] for one in (pipeline, plain))
        assert float((moved - before).detach().abs().max()) > 1e-4, name


@pytest.mark.parametrize("family", ["wan", "wan_5b", "wan_a14b"])
def test_a_plan_counts_tokens_calls_and_the_hosts_bytes(make: Make, family: str, capsys):
    resolved = make(*of_wan(family))
    made = plan.draw_up(resolved)
    # latents of 2 frames: 4 x 4 for pixels of 8, 2 x 2 for pixels of 16, in tokens of 2 x 2
    tokens = {"wan": 8, "wan_5b": 2, "wan_a14b": 8}[family]
    rollout = made.usual.counts["rollout"]
    # 4 prompts x 4 samples x 4 steps, both passes of guidance
    assert (rollout.rows, rollout.positions) == (128, 128 * tokens)
    elements = 4 * tokens * 4
    job = build(resolved)
    policy: Any = job.policy
    kept: list[int] = []
    draw = type(policy.generator).draw

    def noted(self, requests, sigma_table):
        sampled = draw(self, requests, sigma_table)
        parts = {id(x): x.numel() for x in (*sampled.trajectory.states, *sampled.trajectory.means, *sampled.trace.latents.parts)}
        kept.append(4 * sum(parts.values()))
        return sampled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(policy.generator), "draw", noted)
        job.trainer.step()
    assert made.memory.host["latents of a step's rollouts"] == sum(kept) and sum(kept) % (4 * elements) == 0
    assert made.memory.host["decoded samples"] == 16 * 5 * 32 * 32 * 3
    plan.print_memory(made, on_card=True)
    assert "decoded samples (memory of the host)" in " ".join(capsys.readouterr().out.split())


def test_a_plan_counts_both_experts_and_goes_through_hunyuan_video(make: Make):
    """Of it 3 latents of 8 x 8 in tokens of one; its network gets channels of a first frame too."""
    one, two = (plan.draw_up(make(*of_wan(family))).memory for family in ("wan", "wan_a14b"))
    assert two.parameters == pytest.approx(2 * one.parameters, rel=1e-9) and two.trained == 2 * one.trained
    assert one.phases["decode"] > 0
    made = plan.draw_up(make(*of_wan("hunyuan15")))
    rollout = made.usual.counts["rollout"]
    assert (rollout.rows, rollout.positions) == (128, 128 * 3 * 8 * 8)
    assert made.memory.phases["update"] > made.memory.phases["rollout"] > 0


def test_a_card_loads_an_adapter_by_the_transformer_where_the_pipeline_does_not(make: Make):
    policy: Any = build(make(*of_wan("hunyuan15"))).policy
    *_, last = FlowModality().snippet(policy, "a/model", adapter=True)
    assert last == 'pipeline.transformer.load_lora_adapter("THIS_FOLDER", prefix=None, use_safetensors=True)'
    refused("leaves that to its transformer: leave --form out", check_form, "peft", policy.config, is_adapter=True)


def test_an_expert_that_no_trained_step_reaches_is_said(make: Make, caplog):
    """Four steps, of which three train, at times 1000, 857 and 602; the second expert begins below 600."""
    build(make(*of_wan("wan_a14b")))
    assert "the second network of policy.model draws below time 600, where no step of the first 100 trains" in caplog.text
    caplog.clear()
    build(make(*of_wan("wan_a14b"), "algorithm.schedule.num_steps=6"))
    build(make(*of_wan("wan")))
    assert "second network" not in caplog.text


def test_clips_in_files_are_scored_and_shown(tmp_path: Path):
    """A folder of .mp4 files, as `mmrl reward score` reads it: the moving clip comes before the still one."""
    moving = to_bytes(gliding.draw(gliding.GLIDES[0], 32, 5))
    for name, frames in (("a", np.repeat(moving[:1], 5, 0)), ("b", moving)):
        write_mp4(tmp_path / "clips" / f"{name}.mp4", frames, 4)
        (tmp_path / "clips" / f"{name}.txt").write_text(gliding.GLIDES[0].caption)
    read, fps = read_mp4(tmp_path / "clips" / "b.mp4")
    assert read.shape == moving.shape and fps == 4 and np.abs(read.astype(int) - moving).mean() < 6
    page, scores = tmp_path / "page.html", tmp_path / "scores.jsonl"
    score("over_frames", ['picture={use="jpeg_size"}', "frames=2"], str(tmp_path / "clips"), ScoreOptions(html=page, out=scores))
    found = [json.loads(line) for line in scores.read_text().splitlines()]
    assert {row["output"] for row in found} == {"a.mp4", "b.mp4"} and "clip" not in found[0]
    changes = {row["output"]: row["parts"]["change"] for row in found}
    assert changes["b.mp4"] > 0.01 > changes["a.mp4"]
    assert page.read_text().count('<video src="data:video/mp4;base64,') == 2
    (tmp_path / "clips" / "b.mp4").write_bytes(b"no video")
    refused(r"b\.mp4 cannot be read as a video", read_mp4, tmp_path / "clips" / "b.mp4")


def test_one_frame_of_a_clip_model_is_a_picture(make: Make):
    words = [word for word in of_wan("wan") if not word.startswith("reward")]
    job = build(make(*words, "policy.frames=1"))
    metrics = job.trainer.step()
    assert np.isfinite(metrics["reward/total"]) and configs.load("tiny/flow").config.policy.model == "tiny:sd3"


ROWS = [{"prompt": "a bell", "span": [0, 0.1]}, {"prompt": "a dog barks", "span": [0.1, 0.2]}]
SIZES = ["policy.height=32", "policy.width=32", "policy.frames=5", "policy.fps=20.0", "policy.max_prompt_tokens=16"]


BOTH = 'reward=[{use="band_energy", low=1, high=100}, {use="smooth_motion"}]'


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
    few = ["prompts_per_step=1", "evaluation.num_prompts=1", "evaluation.num_steps=2"]
    few += ["policy.model=tiny:ltx2", "policy.dtype=float32"]
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
    folder = export(run.path, tmp_path / "out")
    assert "pipeline_tag: text-to-video" in (folder / "README.md").read_text()
    assert any("lora_" in name for name, _ in loaded_by_card(folder).transformer.named_parameters())


@pytest.mark.parametrize("rests", [True, False])
def test_every_part_takes_room(rests: bool, tmp_path: Path):
    """A text encoder that rests in the host's memory takes some only while it reads."""
    model = str(build_tiny("ltx2", tmp_path / "model"))
    given = FlowPolicyConfig(model, height=32, width=32, frames=5, sound=True, max_prompt_tokens=16, rest_text_encoders=rests)
    reader = set() if rests else {"text_encoder"}
    found = FlowDryRun(given).beside()
    assert found.keys() == {"vae", "audio_vae", "connectors", "vocoder"} | reader and min(found.values()) > 0


def test_clip_and_sound_train_apart_in_a_run(tmp_path: Path):
    names = ['algorithm.advantage.of_sound=["band_energy"]', 'algorithm.advantage.of_clip=["smooth_motion"]']
    own = ["algorithm={preset='omninft'}", *names, "algorithm.schedule.num_steps=4", "algorithm.schedule.times.count=2"]
    words = [f"policy.model={build_tiny('ltx2', tmp_path / 'model')}", *own, "algorithm.group_size=2", BOTH, "steps=1"]
    job = build(of_tiny(*words, "prompts_per_step=2", "output=apart"))
    [metrics] = train_steps(job)
    assert math.isfinite(metrics["reward/total"]) and metrics["policy/grad_norm"] > 0


@pytest.mark.evidence
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_two_steps(make: Make, name: str):
    """With guidance, an adapter and rewards of both; the ratio gate (1e-6) passes."""
    job = build(with_preset(make, name, "policy.model=tiny:ltx2", "policy.guidance=2.0", "policy.sound=true", *SIZES, BOTH))
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
    refused(r"\.wav", draw, run.path, "a hum", out=Path("hum.png"))
    folder = export(run.path, tmp_path / "out")
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: text-to-audio" in card and "1 s, " in card
    assert any("lora_" in name for name, _ in loaded_by_card(folder).transformer.named_parameters())
