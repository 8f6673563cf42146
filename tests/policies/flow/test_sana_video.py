"""SANA-Video, from words and from a first frame: clips as its pipelines', read again exactly, and an adapter that they load."""

import json
import shutil
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.types import Prompt, Request
from mmrl.flow.dynamics import DPM2
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import RolloutPlan, StepPlan, evaluation_plan
from mmrl.flow.schedules import Full
from mmrl.flow.sigmas import FlowSigmas, LinearShift, StaticShift
from mmrl.lab.tiny.byte_tokens import hub
from mmrl.lab.tiny.flow.pipeline_parts import LATENTS
from mmrl.lab.tiny.flow.pipelines import solver
from mmrl.policies.flow.families.sana import SanaVideo, SanaVideoImage
from mmrl.policies.flow.policy import FlowPolicy
from tests.support.flow_policies import LORA, latents, read_again, with_adapters

SIDE, FRAMES, TOKENS, STEPS = 32, 5, 24, 4
PLANS = {"sana_video": RolloutPlan((StepPlan(DPM2()),) * STEPS), "sana_i2v": evaluation_plan(STEPS)}
"""The steps of their pipelines' schedulers."""


def make(folder: str, **settings: Any) -> FlowPolicy:
    """With adapters that do something."""
    given = {"height": SIDE, "width": SIDE, "frames": FRAMES, "max_prompt_tokens": TOKENS, "lora": LORA, "guidance": 3.0}
    return with_adapters(folder, **(given | settings))


def asked(model: str, count: int = 1) -> list[Request]:
    pixels = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 3), dtype=np.uint8)
    frames = [(Image.fromarray(one),) if model == "sana_i2v" else () for one in pixels]
    return [Request(Prompt(text, text, frames[i]), count, i, seed=7 + i) for i, text in enumerate(("a red cat", "two dogs run"))]


def by_the_pipeline(pipeline: Any, model: str, output: str) -> list[Any]:
    """What the pipeline's own call gives for the same noise, prompt by prompt."""
    pipeline.set_progress_bar_config(disable=True)
    told = {"height": SIDE, "width": SIDE, "frames": FRAMES, "num_inference_steps": STEPS, "output_type": output}
    told |= {"max_sequence_length": TOKENS, "use_resolution_binning": False, "guidance_scale": 3.0}
    found: list[Any] = []
    for one in asked(model):
        own = {"image": one.prompt.media[0]} if one.prompt.media else {}
        found.append(pipeline(prompt=one.prompt.text, generator=generator_of(one.seed, 0, 0), **own, **told).frames[0])
    return found


def gap(policy: FlowPolicy, pipeline: Any, model: str) -> float:
    theirs = torch.stack(by_the_pipeline(pipeline, model, "latent"))
    return float((latents(policy, asked(model), PLANS[model]) - theirs).abs().max())


def pixel_gap(policy: FlowPolicy, pipeline: Any, model: str) -> float:
    """The largest difference of two bytes."""
    samples: Any = [sample for _, sample in policy.rollout(asked(model), PLANS[model]).samples()]
    assert all(sample.video.shape == (FRAMES, SIDE, SIDE, 3) and sample.fps == 16 for sample in samples)
    theirs = np.round(np.stack(by_the_pipeline(pipeline, model, "np")) * 255).astype(int)
    return float(np.abs(np.stack([sample.video for sample in samples]).astype(int) - theirs).max())


@pytest.mark.parametrize("model", sorted(PLANS))
def test_it_is_its_pipeline_with_an_adapter_saved_and_loaded(tiny: Any, tmp_path: Path, model: str):
    policy = make(tiny(model))
    policy.save(tmp_path)
    pipeline: Any = diffusers.DiffusionPipeline.from_pretrained(tiny(model))  # type: ignore[reportPrivateImportUsage]
    assert gap(policy, pipeline, model) > 1e-3, "the adapter changes the clip"
    pipeline.load_lora_weights(str(tmp_path))
    assert gap(policy, pipeline, model) < 1e-5
    assert pixel_gap(policy, pipeline, model) <= 1
    spacing = FlowSigmas(3.0, 0.999) if model == "sana_video" else StaticShift(3.0)
    assert policy.family.spacing() == spacing
    torch.testing.assert_close(policy.sigmas(PLANS[model]), pipeline.scheduler.sigmas, atol=2e-6, rtol=0)


@pytest.mark.parametrize("model", sorted(PLANS))
def test_log_probabilities_are_read_again_and_every_adapter_gets_a_gradient(tiny: Any, model: str):
    policy = make(tiny(model))
    rollouts = policy.rollout(asked(model, 3), Full(num_steps=3, level=0.7).at(0))
    policy.audit(rollouts)
    difference, still = read_again(policy, rollouts)
    assert difference < 1e-6 and still == []


@pytest.mark.parametrize(
    ("model", "kind", "name", "wrong"),
    [
        ("sana_video", SanaVideo, "spacing", lambda self: LinearShift(3.0)),
        ("sana_video", SanaVideo, "instruction", None),
        ("sana_i2v", SanaVideoImage, "times", lambda self, timesteps: timesteps[:, None].repeat(1, self.image_tokens)),
        ("sana_i2v", SanaVideo, "normalize", lambda self, latents: latents),
    ],
    ids=["table", "instruction", "time", "normalize"],
)
def test_a_fact_that_is_broken_is_noticed(
    tiny: Any, model: str, kind: type, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kind, name, wrong)
    policy = make(tiny(model))
    assert gap(policy, policy.pipeline, model) > 1e-3


def with_part(folder: str, name: str, part: Any, to: Path) -> Path:
    """A copy of a pipeline with another part."""
    copy = shutil.copytree(folder, to)
    shutil.rmtree(copy / name)
    part.save_pretrained(copy / name)
    index = json.loads((copy / "model_index.json").read_text())
    (copy / "model_index.json").write_text(json.dumps(index | {name: ["diffusers", type(part).__name__]}))
    return copy


def test_a_first_frame_is_gone_on_from_by_dpm_solver_too(tiny: Any, tmp_path: Path):
    """The published folder comes with it."""
    folder = with_part(tiny("sana_i2v"), "scheduler", solver(), tmp_path / "model")
    policy = make(str(folder), lora=None)
    policy.pipeline.set_progress_bar_config(disable=True)
    theirs = torch.stack(by_the_pipeline(policy.pipeline, "sana_i2v", "latent"))
    ours = latents(policy, asked("sana_i2v"), PLANS["sana_video"])
    assert float((ours - theirs).abs().max()) < 1e-5


def test_the_autoencoder_of_ltx_2_decodes_as_in_the_pipeline(tiny: Any, tmp_path: Path):
    """Its moments lie beside its weights, and its config has the compression by other names."""
    vae = hub(
        "AutoencoderKLLTX2Video",
        latent_channels=LATENTS,
        block_out_channels=(8, 16),
        down_block_types=("LTX2VideoDownBlock3D",) * 2,
        decoder_block_out_channels=(8, 16),
        layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        spatio_temporal_scaling=(True, True),
        decoder_spatio_temporal_scaling=(True, True),
        decoder_inject_noise=(False,) * 3,
        downsample_type=("spatiotemporal",) * 2,
        upsample_type=("spatiotemporal",) * 2,
        upsample_residual=(True, True),
        upsample_factor=(2, 2),
        patch_size=2,
        spatial_compression_ratio=8,
        temporal_compression_ratio=4,
    )
    vae.latents_mean.copy_(torch.tensor([0.1, -0.1, 0.2, 0.0]))
    vae.latents_std.copy_(torch.tensor([0.9, 1.1, 1.0, 1.2]))
    folder = with_part(tiny("sana_video"), "vae", vae, tmp_path / "model")
    policy = make(str(folder), lora=None)
    pipeline: Any = diffusers.DiffusionPipeline.from_pretrained(folder)  # type: ignore[reportPrivateImportUsage]
    pipeline.transformer.load_state_dict(policy.pipeline.transformer.state_dict())
    assert pixel_gap(policy, pipeline, "sana_video") <= 1


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("sana_video", {"frames": 6}, r"policy\.frames is 6, but this model draws 4k \+ 1 frames: set it to 5 or 9"),
        ("sana_video", {"width": 40}, "multiples of 16 pixels"),
        ("sana_i2v", {"frames": 1}, r"policy\.frames is 1, but this model draws what follows a first frame"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_weights_load(
    tiny: Any, model: str, settings: dict[str, Any], message: str, no_weights: None
):
    with pytest.raises(ValueError, match=message):
        make(tiny(model), **settings)
