"""The newer families, each against its pipeline's own call: latents, pictures, readings, gradients and exports."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch

from mmrl.flow.schedules import Full
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.shared.lora import LoraSettings
from tests.support.flow_policies import latents, read_again, requests
from tests.support.late_families import CASES, gap, noise_of, policy_of, told


@pytest.mark.parametrize("name", sorted(CASES))
def test_it_is_its_pipeline_with_an_adapter_saved_and_loaded(tiny, name, tmp_path):
    case = CASES[name]
    policy = policy_of(tiny, case)
    policy.save(tmp_path)
    pipeline: Any = import_module("diffusers").DiffusionPipeline.from_pretrained(tiny(case.model))
    plain = told(pipeline, case, noise_of(policy, case.plan, 1), case.output)
    pipeline.load_lora_weights(str(tmp_path))
    assert gap(policy, case, pipeline) < case.bound
    drawn = told(pipeline, case, noise_of(policy, case.plan, 1), case.output)
    assert (drawn - plain).abs().max() > 1e-3, "the adapter changes the picture"
    ours = policy.decode(latents(policy, requests(count=1, num_prompts=1), case.plan))[0]
    theirs = told(pipeline, case, noise_of(policy, case.plan, 1), "pt")[0]
    pixels = torch.tensor(list(ours.getdata())).view(32, 32, 3).permute(2, 0, 1) / 255  # type: ignore[attr-defined]
    assert (pixels - theirs).abs().max() < 1.5 / 255


@pytest.mark.parametrize("dynamics", ["flow_sde", "ddim"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_readings_are_those_of_sampling_and_every_adapter_gets_a_gradient(tiny, name, dynamics):
    # A UNet rounds otherwise with another number of rows, some CPUs also with other neighbours of a row, and ddim's second noise,
    # a twelfth of the first, magnifies that (test_rounding.py).
    equal = {"equal_forwards": True, "forward_rows": 6} if dynamics == "ddim" else {}
    side = 32 if CASES[name].model == "qwen_image21" else 16
    policy = policy_of(tiny, CASES[name], height=side, width=side, **equal)
    rollouts = policy.rollout(requests(count=2), Full(num_steps=3, dynamics=dynamics, level=0.7).at(0))
    difference, still = read_again(policy, rollouts)
    assert difference < (1e-4 if dynamics == "ddim" else 1e-6) and still == []


@pytest.mark.parametrize("name", ["z_image", "sd15"])
def test_a_saved_adapter_is_a_start_and_a_saved_pipeline_a_model(tiny, name, tmp_path):
    case = CASES[name]
    policy = policy_of(tiny, case)
    policy.save(tmp_path / "adapter")
    started = FlowPolicy(replace(policy.config, lora=LoraSettings(adapter=str(tmp_path / "adapter"))), ["ref"])
    expected = latents(policy, requests(count=1), case.plan)
    torch.testing.assert_close(latents(started, requests(count=1), case.plan), expected)
    whole = policy_of(tiny, case, lora=None)
    whole.save(tmp_path / "model")
    pipeline: Any = import_module("diffusers").DiffusionPipeline.from_pretrained(tmp_path / "model")
    assert gap(whole, case, pipeline) < case.bound
