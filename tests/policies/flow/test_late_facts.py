"""Facts of the newer families: broken one at a time they are noticed, and models that do not have them are refused."""

import json
import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.core.readings import MEAN, STD
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Full
from mmrl.flow.sigmas import DynamicShift, LinearShift, StaticShift
from mmrl.policies.flow.families.flux.flux1 import Chroma
from mmrl.policies.flow.families.flux.flux2 import Flux2
from mmrl.policies.flow.families.krea2 import Krea2
from mmrl.policies.flow.families.qwen.image21 import QwenImage21
from mmrl.policies.flow.families.sana import Sana
from mmrl.policies.flow.families.stable_diffusion import StableDiffusion, StableDiffusionXL
from mmrl.policies.flow.families.z_image import Lumina2, ZImage
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
from tests.support.flow_policies import LORA, latents, requests
from tests.support.late_families import CASES, Case, gap, noise_of, policy_of

VELOCITY, ENCODE = ZImage.velocity, StableDiffusionXL.encode
READ, TOLD, PLACES = Chroma.encode, Lumina2.encode, Krea2._places


def whole(condition: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without a difference between tokens and padding."""
    return {**condition, "mask": torch.ones_like(condition["mask"])}


def without_size(family: object, prompts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """SDXL's further inputs, of pictures of no size."""
    return {"text_embeds": prompts["pooled"], "time_ids": torch.zeros(len(prompts["pooled"]), 6)}


FACTS: dict[str, tuple[str, type, str, Any]] = {
    "guidance counts from 0": ("z_image", ZImage, "guide", lambda self, a, b, g, t: b + (g - 1) * (a - b)),
    "lengths are not cut": ("z_image_capped", ZImage, "guide", lambda self, a, b, g, t: b + g * (a - b)),
    "the velocity is not turned": ("z_image", ZImage, "velocity", lambda self, *rest: -VELOCITY(self, *rest)),
    "time runs to the noise": (
        "z_image",
        ZImage,
        "velocity",
        lambda self, net, x, t, *rest: VELOCITY(self, net, x, 1000 - t, *rest),
    ),
    "the scheduler's own grid": ("z_image", ZImage, "spacing", lambda self: StaticShift(3.0)),
    "FLUX.1's mu": ("flux2", Flux2, "spacing", lambda self: DynamicShift()),
    "tokens in another order": ("flux2", Flux2, "pack", lambda self, x: x.transpose(2, 3).flatten(2).transpose(1, 2)),
    "an even table": ("sana", Sana, "spacing", lambda self: LinearShift(3.0)),
    "no instruction": ("sana", Sana, "instruction", None),
    "columns before rows": ("krea2", Krea2, "_places", lambda self, *rest: PLACES(self, *rest)[:, [0, 2, 1]]),
    "steps that do not end at 0.02": ("qwen_image21", QwenImage21, "spacing", lambda self: DynamicShift(0.5, 0.9, 256, 8192)),
    "a norm that is kept": ("qwen_image21_guided", QwenImage21, "keep_norm", True),
    "guidance away from nothing": ("qwen_image21_guided", QwenImage21, "empty_prompt", "the"),
    "padding is seen in full": ("chroma", Chroma, "encode", lambda self, *rest: whole(READ(self, *rest))),
    "FLUX.1's dynamic shift": ("chroma", Chroma, "spacing", lambda self: DynamicShift()),
    "the norm is not kept": ("lumina2", Lumina2, "keep_norm", False),
    "no prompt has the instruction too": (
        "lumina2",
        Lumina2,
        "encode",
        lambda self, text, device: TOLD(self, text or " ", device),
    ),
    "noise is not scaled": ("sd15", StableDiffusion, "start", lambda self, noise, sigma: noise),
    "the end is not scaled back": ("sd15", StableDiffusion, "finish", lambda self, x, sigma: x),
    "no prompt is no zeros": ("sdxl", StableDiffusionXL, "encode", lambda self, text, device: ENCODE(self, f"{text} ", device)),
    "no size": ("sdxl", StableDiffusionXL, "_extra_inputs", without_size),
}
"""A fact -> model, family, its answer, and another one."""


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_that_is_broken_is_noticed(tiny, fact, monkeypatch):
    name, family, attribute, spoilt = FACTS[fact]
    case = CASES[name]
    monkeypatch.setattr(family, attribute, spoilt)
    policy = FlowPolicy(FlowPolicyConfig(tiny(case.model), 32, 32, guidance=case.guidance, **case.settings))
    pipeline: Any = import_module("diffusers").DiffusionPipeline.from_pretrained(tiny(case.model))
    assert gap(policy, case, pipeline) > 1e-3


@pytest.mark.parametrize("steps", [6, 7, 10])
def test_z_images_sigmas_are_its_pipelines_bit_for_bit(tiny, steps):
    case = CASES["z_image"]
    pipeline: Any = import_module("diffusers").DiffusionPipeline.from_pretrained(tiny(case.model))
    pipeline("a cat", 32, 32, num_inference_steps=steps, guidance_scale=0.0, max_sequence_length=64, output_type="latent")
    assert torch.equal(policy_of(tiny, case).sigmas(evaluation_plan(steps)), pipeline.scheduler.sigmas)


def test_a_distilled_krea_2_is_its_pipeline(tiny, tmp_path):
    """One shift for all sizes, and no guidance unless asked for."""
    folder = changed(tiny, tmp_path, "krea2/model_index.json", {"is_distilled": True})
    case = Case("krea2", 1.0, {"guidance_scale": 0.0, "max_sequence_length": 40})
    pipeline: Any = import_module("diffusers").DiffusionPipeline.from_pretrained(folder)
    policy = FlowPolicy(FlowPolicyConfig(folder, 32, 32, max_prompt_tokens=40))
    assert gap(policy, case, pipeline) < case.bound
    torch.testing.assert_close(policy.sigmas(evaluation_plan(4)), pipeline.scheduler.sigmas, atol=2e-7, rtol=0)


@pytest.mark.parametrize("listed", [None, (1.0, 0.9, 0.6, 0.2)])
def test_qwen_image_21s_sigmas_are_its_pipelines_bit_for_bit(tiny, tmp_path, listed):
    """Even ones, and for as many steps those that its makers list."""
    folder = changed(tiny, tmp_path, "qwen_image21/model_index.json", {"sample_sigmas": listed})
    pipeline: Any = import_module("diffusers").DiffusionPipeline.from_pretrained(folder)
    policy = FlowPolicy(FlowPolicyConfig(folder, 32, 32))
    for steps in (4, 7, 40):
        own = {} if listed and steps == len(listed) else {"sigmas": np.linspace(1.0, 1 / steps, steps)}
        pipeline("a cat", height=32, width=32, num_inference_steps=steps, output_type="latent", **own)
        assert torch.equal(policy.sigmas(evaluation_plan(steps)), pipeline.scheduler.sigmas)


def test_qwen_image_21_decodes_all_of_its_pipelines_colours_and_shows_them_on_white(tiny):
    case = CASES["qwen_image21"]
    policy = policy_of(tiny, case)
    pipeline = policy.pipeline
    finished = latents(policy, requests(count=1), case.plan)
    pipeline.set_progress_bar_config(disable=True)
    start = noise_of(policy, case.plan, 1)
    theirs = pipeline(
        prompt=requests(count=1)[0].prompt.text, latents=start, height=32, width=32, num_inference_steps=4, output_type="pt"
    )
    ours = policy.family.unpack(finished[:1])
    torch.testing.assert_close((policy.family.pixels(ours) / 2 + 0.5).clamp(0, 1), theirs.images, atol=5e-5, rtol=0)  # type: ignore[attr-defined]
    clear = theirs.images.clone()
    clear[:, 3] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.vae, "decode", lambda *_, **__: ((clear * 2 - 1)[:, :, None],))
        assert bool((policy.family.decode(ours) == 1).all())


def test_the_mark_of_a_picture_in_a_prompt_is_refused(tiny):
    policy = policy_of(tiny, CASES["qwen_image21"])
    with pytest.raises(ValueError, match=r"the prompt 'a <\|image_pad\|> b' holds <\|image_pad\|>, which stands for a picture"):
        policy.encoder(["a <|image_pad|> b"], policy.net.device)


def test_sigmas_of_a_beta_distribution_are_refused(tiny, tmp_path):
    folder = changed(tiny, tmp_path, f"chroma/{SCHEDULER}", {"use_beta_sigmas": True})
    policy = FlowPolicy(FlowPolicyConfig(folder, 16, 16, max_prompt_tokens=24))
    with pytest.raises(ValueError, match="use_beta_sigmas = True, and its sigmas cannot be reproduced here"):
        policy.sigmas(evaluation_plan(4))
    assert policy.sigmas(evaluation_plan(4, LinearShift(1.0))).tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]


@pytest.mark.parametrize("eta", [0.3, 1.0])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_ddims_noisy_step_is_the_schedulers(tiny, prediction, eta, tmp_path):
    """Mean and deviation of every step, at the network's own predictions of noise or v."""
    folder = changed(tiny, tmp_path, "sd15/scheduler/scheduler_config.json", {"prediction_type": prediction})
    policy = FlowPolicy(FlowPolicyConfig(folder, 16, 16, guidance=1.0, lora=LORA))
    rollouts = policy.rollout(requests(count=1), Full(num_steps=3, dynamics="ddim", level=eta, last="trained").at(0))
    trace: Any = rollouts.trace
    scheduler = policy.pipeline.scheduler
    scheduler.set_timesteps(3)
    sigmas = trace.sigma_tables[0].sigmas
    scale = ((1 - sigmas) ** 2 + sigmas**2).sqrt()
    found = policy.read(trace, [MEAN, STD], rollouts.action_mask)
    for row in range(2):
        embeds = trace.conditions[row]["embeds"][None]
        for step, time in enumerate(scheduler.timesteps):
            x = trace.latents[trace.before[row, step]][None] / scale[step]
            with torch.no_grad():
                out = policy.pipeline.unet(x, time, encoder_hidden_states=embeds).sample
            nothing = torch.zeros_like(x)
            mean, above = (
                scheduler.step(out, time, x, eta=eta, variance_noise=nothing + noise).prev_sample * scale[step + 1]
                for noise in (0, 1)
            )
            torch.testing.assert_close(found[MEAN][row, step].detach(), mean[0], atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(found[STD][row, step].expand(mean[0].shape), (above - mean)[0], atol=2e-5, rtol=1e-3)


def changed(tiny: Any, tmp_path: Path, part: str, change: Mapping[str, Any]) -> str:
    """A model with another entry in one of its files."""
    name, _, file = part.partition("/")
    folder = shutil.copytree(tiny(name), tmp_path / "model")
    entries = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(entries | dict(change)))
    return str(folder)


SCHEDULER = "scheduler/scheduler_config.json"


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"spacing": LinearShift(3.0)}, "knows the noise levels of its own table alone"),
        ({"truncated_timesteps": True}, "wrong noise levels: leave it out"),
    ],
)
def test_plans_that_a_table_of_noise_levels_cannot_follow_are_refused(tiny, schedule, message):
    policy = policy_of(tiny, CASES["sd15"])
    with pytest.raises(ValueError, match=message):
        policy.rollout(requests(count=1), Full(num_steps=3, **schedule).at(0))
