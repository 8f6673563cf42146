"""Stable Audio 3 against its pipeline's own call: the table, latents, waves, readings, exports; and what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from diffusers.pipelines.stable_audio_3.pipeline_stable_audio_3 import logsnr_sigma_schedule

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Forward, RandomSubset
from mmrl.flow.sigmas import LogSnr
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings
from tests.support.flow_policies import LORA, latents, logprobs, requests, stir
from tests.support.late_families import noise_of

SECONDS, STEPS = 1.45, 4
LAST = RandomSubset(num_steps=6, candidates=(3, 4), count=2).at(0)


def policy_of(folder: str, **settings: Any) -> FlowPolicy:
    torch.manual_seed(0)
    usual: dict[str, Any] = {"seconds": SECONDS, "guidance": 3.0, "lora": LORA, "forward_rows": 1, "decode_rows": 1}
    policy = FlowPolicy(FlowPolicyConfig(folder, **{**usual, **settings}), ["ref"])
    stir(policy)
    return policy


def told(pipeline: Any, policy: FlowPolicy, output: str) -> torch.Tensor:
    """The pipeline's own answers from the same noise, one call per prompt."""
    pipeline.set_progress_bar_config(disable=True)
    noise, guidance = noise_of(policy, evaluation_plan(STEPS), 2), policy.net.guidance
    made = [
        pipeline(
            prompt=request.prompt.text,
            duration=SECONDS,
            latents=start[None].clone(),
            num_inference_steps=STEPS,
            guidance_scale=guidance,
            output_type=output,
            return_dict=False,
        )[0]
        for request, start in zip(requests(count=1), noise, strict=True)
    ]
    return torch.cat(made)


@pytest.mark.parametrize("steps", [1, 2, 8, 100])
def test_the_table_is_the_schedulers_bit_for_bit(tiny: Any, steps: int):
    scheduler = DiffusionPipeline.from_pretrained(tiny("stable_audio3")).scheduler
    scheduler.set_timesteps(sigmas=logsnr_sigma_schedule(steps, -6.2, 2.0))
    spacing = LogSnr()
    assert torch.equal(spacing.sigmas(spacing.grid(steps)), scheduler.sigmas)
    slow = [1.0, *(1 / (1 + np.exp(2 - 8.2 * (1 - i / steps))) for i in range(1, steps)), 0.0]
    np.testing.assert_allclose(scheduler.sigmas.numpy(), slow, atol=1e-6)


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_latents_and_waves_are_its_pipelines_with_an_adapter_saved_and_loaded(tiny: Any, tmp_path: Path, guidance: float):
    policy = policy_of(tiny("stable_audio3"), guidance=guidance)
    policy.save(tmp_path)
    pipeline: Any = DiffusionPipeline.from_pretrained(tiny("stable_audio3"))
    plain = told(pipeline, policy, "pt")
    # the lines that a model card has for it
    from diffusers.loaders.peft import PeftAdapterMixin

    network = pipeline.transformer
    network.__class__ = type(type(network).__name__, (type(network), PeftAdapterMixin), {})
    network.load_lora_adapter(str(tmp_path), prefix=None, use_safetensors=True)
    ours, theirs = latents(policy, requests(count=1), evaluation_plan(STEPS)), told(pipeline, policy, "latent")
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    decoded: Any = policy.decode(ours)
    waves, heard = torch.tensor(np.stack(decoded)), told(pipeline, policy, "pt")
    assert waves.shape == (2, 2, int(SECONDS * 16)) and (waves - heard).abs().max() <= 1e-5
    assert (heard - plain).abs().max() > 1e-3, "the adapter changes the sound"
    assert (waves[0] - waves[1]).abs().max() > 1e-2, "prompts sound different"


def test_all_weights_train_and_the_saved_pipeline_is_its_model(tiny: Any, tmp_path: Path):
    policy = policy_of(tiny("stable_audio3"), lora=None)
    assert not any("to_local_embed" in name for name in policy.weights.named), "which asks for a sound to change"
    policy.save(tmp_path)
    theirs = told(DiffusionPipeline.from_pretrained(tmp_path), policy, "latent")
    ours = latents(policy, requests(count=1), evaluation_plan(STEPS))
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    started = FlowPolicy(replace(policy.config, model=str(tmp_path)), ["ref"])
    assert torch.equal(latents(started, requests(count=1), evaluation_plan(STEPS)), ours)


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapter", "whole"])
def test_readings_are_those_of_sampling_and_every_weight_gets_a_gradient(tiny: Any, lora: LoraSettings | None):
    policy = policy_of(tiny("stable_audio3"), lora=lora, forward_rows=16, decode_rows=16)
    rollouts = policy.rollout(requests(count=2), LAST)
    policy.audit(rollouts)
    again, noted = logprobs(policy, rollouts), rollouts.recorded[ROLLOUT_LOGPROBS]
    assert (again - noted).abs()[rollouts.action_mask].max() < 1e-5
    again.sum().backward()
    silent = [key for key, weight in policy.weights.named.items() if weight.grad is None or not bool(weight.grad.abs().sum())]
    assert silent == []
    sample = rollouts.groups[0].samples[0]
    assert sample.rate == 16 and sample.sound.dtype == np.float32 and sample.sound.shape == (2, int(SECONDS * 16))
    assert sample.image is sample.video is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rate": 8}, "its sound is 23 samples at 8 a second, not 23 samples at 16 a second"),
        ({"sound": None}, "its sound is missing"),
        ({"sound": np.zeros((2, 22), np.float32)}, "its sound is 22 samples at 16 a second"),
        ({"sound": np.full((2, 23), np.nan, np.float32)}, "beyond .-1, 1., or none that are numbers"),
    ],
)
def test_the_audit_looks_at_sounds(tiny: Any, change: dict[str, object], said: str):
    policy = policy_of(tiny("stable_audio3"), forward_rows=4)
    rollouts = policy.rollout(requests(count=1), LAST)
    first, *others = rollouts.groups
    bad = replace(first, samples=(replace(first.samples[0], **change),))
    with pytest.raises(ValueError, match=said):
        policy.audit(replace(rollouts, groups=(bad, *others)))


def test_waves_that_are_no_numbers_stop_the_run(tiny: Any):
    policy = policy_of(tiny("stable_audio3"))
    shape = (1, *policy.family.latent_shape)
    with pytest.raises(ValueError, match="decoded samples that are not finite: look for latents that grew"):
        policy.decode(torch.full(shape, torch.nan))


def test_pictures_of_the_data_are_no_sounds(tiny: Any):
    policy = policy_of(tiny("stable_audio3"))
    asked = Request(Prompt("p", "a hum", columns={"picture": "a.png"}), 1, 0, role="injected", written="picture")
    with pytest.raises(ValueError, match="models of sounds cannot be taught: train by rewards"):
        policy.rollout([asked], Forward(num_steps=10).at(0))
