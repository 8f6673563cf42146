"""HunyuanVideo 1.5 and SANA-Video, from words and a first frame: clips as their pipelines', adapters that diffusers loads."""

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

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
from mmrl.policies.flow.families.base import SOURCE
from mmrl.policies.flow.families.clips import SEEN
from mmrl.policies.flow.families.hunyuan import HunyuanVideo15, HunyuanVideo15Image
from mmrl.policies.flow.policy import FlowPolicy
from tests.support.flow_policies import LORA, latents, read_again, with_adapters

FRAMES, STEPS = 5, 4
SIDE, TOKENS, FPS = {"hunyuan": 16, "sana": 32}, {"hunyuan": 40, "sana": 24}, {"hunyuan": 24, "sana": 16}
TEXTS = {"hunyuan": ('a red sign that says "hi"', "two dogs"), "sana": ("a red cat", "two dogs run")}
"""Words in quotes are read by ByT5 too; the prompts have other lengths."""
EVEN, SOLVED = evaluation_plan(STEPS), RolloutPlan((StepPlan(DPM2()),) * STEPS)
PLANS = {"hunyuan15": EVEN, "hunyuan15_i2v": EVEN, "sana_i2v": EVEN, "sana_video": SOLVED}
"""The steps of their pipelines' schedulers."""
VELOCITY, ENCODE = HunyuanVideo15.velocity, HunyuanVideo15Image.encode_with


def kind_of(model: str) -> str:
    return "sana" if model.startswith("sana") else "hunyuan"


def make(folder: object, model: str, **settings: Any) -> FlowPolicy:
    """With adapters that do something."""
    side, tokens = SIDE[kind_of(model)], TOKENS[kind_of(model)]
    given = {"height": side, "width": side, "frames": FRAMES, "max_prompt_tokens": tokens, "lora": LORA, "guidance": 3.0}
    return with_adapters(str(folder), **(given | settings))


def asked(model: str, count: int = 1) -> list[Request]:
    side = SIDE[kind_of(model)]
    pixels = np.random.default_rng(0).integers(0, 256, (2, side, side, 3), dtype=np.uint8)
    frames = [(Image.fromarray(one),) if model.endswith("i2v") else () for one in pixels]
    return [Request(Prompt(text, text, frames[i]), count, i, seed=7 + i) for i, text in enumerate(TEXTS[kind_of(model)])]


def by_the_pipeline(pipeline: Any, model: str, output: str) -> list[Any]:
    """What the pipeline's own call gives for the same noise, prompt by prompt; HunyuanVideo's guider holds guidance 3.

    From a picture HunyuanVideo takes no size: that of the picture is one that it would choose.
    """
    pipeline.set_progress_bar_config(disable=True)
    side, tokens = {name: SIDE[kind_of(model)] for name in ("height", "width")}, TOKENS[kind_of(model)]
    told: dict[str, Any] = {"num_inference_steps": STEPS, "output_type": output}
    if kind_of(model) == "sana":
        told |= {"frames": FRAMES, "max_sequence_length": tokens, "use_resolution_binning": False, "guidance_scale": 3.0, **side}
    else:
        pipeline.tokenizer_max_length = tokens
        told |= {"num_frames": FRAMES, **({} if model.endswith("i2v") else side)}
    found: list[Any] = []
    for one in asked(model):
        own = {"image": one.prompt.media[0]} if one.prompt.media else {}
        found.append(pipeline(prompt=one.prompt.text, generator=generator_of(one.seed, 0, 0), **own, **told).frames[0])
    return found


def gap(policy: FlowPolicy, pipeline: Any, model: str, plan: RolloutPlan | None = None) -> float:
    theirs = torch.stack(by_the_pipeline(pipeline, model, "latent"))
    return float((latents(policy, asked(model), plan or PLANS[model]) - theirs).abs().max())


def pixel_gap(policy: FlowPolicy, pipeline: Any, model: str) -> float:
    """The largest difference of two bytes."""
    samples: Any = [sample for _, sample in policy.rollout(asked(model), PLANS[model]).samples()]
    shape = (FRAMES, SIDE[kind_of(model)], SIDE[kind_of(model)], 3)
    assert all(sample.video.shape == shape and sample.fps == FPS[kind_of(model)] for sample in samples)
    theirs = np.round(np.stack(by_the_pipeline(pipeline, model, "np")) * 255).astype(int)
    return float(np.abs(np.stack([sample.video for sample in samples]).astype(int) - theirs).max())


@pytest.mark.parametrize("model", sorted(PLANS))
def test_it_is_its_pipeline_with_an_adapter_saved_and_loaded(tiny: Any, tmp_path: Path, model: str):
    policy = make(tiny(model), model)
    policy.save(tmp_path)
    pipeline: Any = import_module("diffusers").DiffusionPipeline.from_pretrained(tiny(model))
    assert gap(policy, pipeline, model) > 1e-3, "the adapter changes the clip"
    if kind_of(model) == "sana":
        pipeline.load_lora_weights(str(tmp_path))
        assert policy.family.spacing() == (FlowSigmas(3.0, 0.999) if model == "sana_video" else StaticShift(3.0))
    else:
        pipeline.transformer.load_lora_adapter(str(tmp_path), prefix=None, use_safetensors=True)
    assert gap(policy, pipeline, model) < 1e-5
    assert pixel_gap(policy, pipeline, model) <= 1
    if kind_of(model) == "sana":
        torch.testing.assert_close(policy.sigmas(PLANS[model]), pipeline.scheduler.sigmas, atol=2e-6, rtol=0)


@pytest.mark.parametrize("model", sorted(PLANS))
def test_log_probabilities_are_read_again_and_every_adapter_gets_a_gradient(tiny: Any, model: str):
    policy = make(tiny(model), model)
    rollouts = policy.rollout(asked(model, 3), Full(num_steps=3, level=0.7).at(0))
    policy.audit(rollouts)
    difference, still = read_again(policy, rollouts)
    assert difference < 1e-6 and still == []


def unquoted(self: HunyuanVideo15, net: Any, x: Any, times: Any, prompts: Any, guidance: float) -> torch.Tensor:
    """Without the words in quotes."""
    return VELOCITY(self, net, x, times, {**prompts, "quoted_mask": torch.zeros_like(prompts["quoted_mask"])}, guidance)


def with_padding(self: HunyuanVideo15, net: Any, x: Any, times: Any, prompts: Any, guidance: float) -> torch.Tensor:
    """Seeing what pads a shorter prompt."""
    return VELOCITY(self, net, x, times, {**prompts, "embeds_mask": torch.ones_like(prompts["embeds_mask"])}, guidance)


def unseen(*given: Any) -> Any:
    """Without the first frame's view."""
    found = dict(ENCODE(*given))
    return {**found, SEEN: torch.zeros_like(found[SEEN])}


def unmasked(*given: Any) -> Any:
    """Without the mask of what is known."""
    found = dict(ENCODE(*given))
    return {**found, SOURCE: torch.cat([found[SOURCE][:-1], torch.zeros_like(found[SOURCE][-1:])])}


@pytest.mark.parametrize(
    ("model", "name", "wrong"),
    [
        ("hunyuan15", "velocity", unquoted),
        ("hunyuan15", "velocity", with_padding),
        ("hunyuan15_i2v", "encode_with", unseen),
        ("hunyuan15_i2v", "encode_with", unmasked),
        ("hunyuan15_i2v", "normalize", lambda self, latents: latents),
        ("sana_video", "spacing", lambda self: LinearShift(3.0)),
        ("sana_video", "instruction", None),
        ("sana_i2v", "times", lambda self, timesteps: timesteps[:, None].repeat(1, self.image_tokens)),
        ("sana_i2v", "normalize", lambda self, latents: latents),
    ],
)
def test_a_fact_that_is_broken_is_noticed(tiny: Any, model: str, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch):
    policy, plan = make(tiny(model), model), PLANS[model]
    right = latents(policy, asked(model), plan)
    monkeypatch.setattr(type(policy.family), name, wrong)
    assert float((latents(make(tiny(model), model), asked(model), plan) - right).abs().max()) > 1e-3


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
    policy = make(with_part(tiny("sana_i2v"), "scheduler", solver(), tmp_path / "model"), "sana_i2v", lora=None)
    assert gap(policy, policy.pipeline, "sana_i2v", SOLVED) < 1e-5


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
    policy = make(folder, "sana_video", lora=None)
    pipeline: Any = import_module("diffusers").DiffusionPipeline.from_pretrained(folder)
    pipeline.transformer.load_state_dict(policy.pipeline.transformer.state_dict())
    assert pixel_gap(policy, pipeline, "sana_video") <= 1
