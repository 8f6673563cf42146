"""Adapters, full training, shadows, and what is left in files."""

from dataclasses import replace
from typing import Any

import diffusers
import pytest
import torch

from mmrl.core.readings import LOGPROBS, REF_LOGPROBS
from mmrl.core.types import Prompt, Request
from mmrl.flow.plan import evaluation_plan
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.shared.lora import LoraSettings
from tests.support.ascent import climb
from tests.support.flow_policies import FAMILIES, LORA, PLANS, latents, logprobs, make, requests, stir

RISE = 1e-3

ABSENT: dict[str, dict[str, Any]] = {"sd3": {"text_encoder_3": None, "tokenizer_3": None}, "flux": {}, "qwen_image": {}}


def loaded(folder: Any, family: str) -> Any:
    """By diffusers itself."""
    return diffusers.DiffusionPipeline.from_pretrained(folder, **ABSENT[family])  # type: ignore[reportPrivateImportUsage]


def weights_of(pipeline: Any) -> dict[str, torch.Tensor]:
    return dict(pipeline.transformer.state_dict())


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_raises_the_log_probability_and_the_reference_stays(tiny, family, lora):
    policy = make(tiny(family), ["ref"], lora=lora)
    rollouts = policy.rollout(requests(), PLANS["flow_grpo"])
    reference = policy.read(rollouts.trace, [REF_LOGPROBS], rollouts.action_mask)[REF_LOGPROBS]
    before = logprobs(policy, rollouts)
    found = torch.autograd.grad(before.sum(), list(policy.weights.named.values()), retain_graph=True, allow_unused=True)
    assert [name for name, gradient in zip(policy.weights.named, found, strict=True) if gradient is None] == []
    climb(before.sum(), policy.parameters(), rise=RISE)
    policy.advance()
    after = policy.read(rollouts.trace, [LOGPROBS, REF_LOGPROBS], rollouts.action_mask)
    assert 0.5 * RISE < after[LOGPROBS].sum() - before.sum() < 1.5 * RISE
    assert torch.equal(after[REF_LOGPROBS], reference)
    assert not after[REF_LOGPROBS].requires_grad


def test_a_fresh_adapter_costs_the_reference_nothing_and_trains_on(tiny):
    policy = make(tiny("sd3"), ["ref"])
    rollouts = policy.rollout(requests(), PLANS["flow_grpo"])
    calls: list[bool] = []
    for name, module in policy.net.named_modules():
        if name.endswith("lora_A.default"):
            module.register_forward_pre_hook(lambda *_: calls.append(True))
    reference = policy.read(rollouts.trace, [REF_LOGPROBS], rollouts.action_mask)[REF_LOGPROBS]
    assert not calls
    state = policy.weights.state_dict()
    assert state["shadows"]["ref"] == {}
    nearly = {key: torch.full_like(weight, 1e-8) if "lora_B" in key else weight for key, weight in state["weights"].items()}
    policy.weights.load_state_dict({**state, "shadows": {"ref": nearly}})
    torch.testing.assert_close(
        policy.read(rollouts.trace, [REF_LOGPROBS], rollouts.action_mask)[REF_LOGPROBS], reference, atol=1e-6, rtol=0
    )
    assert calls
    logprobs(policy, rollouts).sum().backward()
    assert all(weight.grad is not None for weight in policy.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_automatic_adapters_sit_where_the_papers_put_them(tiny, family):
    policy = make(tiny(family))
    found = {name.split(".lora_")[0].split(".", 3)[3] for name in policy.weights.named}
    attention = {
        f"attn.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
    }
    forward = {
        "sd3": set(),
        "flux": {"ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2"},
        "qwen_image": {"img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2"},
    }[family]
    assert found == attention | forward


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_adapter_loads_in_diffusers_and_as_a_start(tiny, family, dtype, tmp_path):
    policy = make(tiny(family), dtype=dtype)
    stir(policy, 0.5)
    policy.save(tmp_path)
    pipeline = loaded(tiny(family), family)
    base = {name: value.clone() for name, value in weights_of(pipeline).items()}
    pipeline.load_lora_weights(tmp_path)
    adapter = pipeline.transformer.peft_config["default_0"]
    assert (adapter.r, adapter.lora_alpha) == (4, 4)
    trained = {name: value for name, value in weights_of(policy.pipeline).items() if "lora_" in name}
    found = {name.replace("default_0", "default"): value for name, value in weights_of(pipeline).items() if "lora_" in name}
    assert trained.keys() == found.keys()
    scale = LORA.alpha / LORA.rank
    for name, value in trained.items():
        torch.testing.assert_close(found[name].float(), value * scale if "lora_B" in name else value)
    pipeline.unload_lora_weights()
    assert all(torch.equal(value, base[name]) for name, value in weights_of(pipeline).items())
    started = FlowPolicy(replace(policy.config, lora=LoraSettings(adapter=str(tmp_path))), ["ref"])
    assert started.weights.named.keys() == policy.weights.named.keys()
    plan, asked = PLANS["flow_grpo"], requests(count=1)
    rollouts = policy.rollout(asked, plan)
    values = started.read(rollouts.trace, [LOGPROBS, REF_LOGPROBS], rollouts.action_mask)
    torch.testing.assert_close(values[LOGPROBS].detach(), logprobs(policy, rollouts).detach(), atol=1e-5, rtol=0)
    assert torch.equal(values[REF_LOGPROBS], values[LOGPROBS].detach()), "the reference is the adapter training started from"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_pipeline_draws_with_a_saved_adapter_what_the_policy_draws(tiny, family, tmp_path):
    policy = make(tiny(family), guidance=1.0)
    stir(policy, 0.5)
    policy.save(tmp_path)
    pipeline = loaded(tiny(family), family)
    pipeline.set_progress_bar_config(disable=True)
    asked = [Request(Prompt("cat", "a red cat"), 1, 0, seed=7)]
    ours = latents(policy, asked, evaluation_plan(3))
    start = latents(policy, asked, PLANS["flow_grpo"]), policy.rollout(asked, PLANS["flow_grpo"]).trace
    noise = start[1].latents[start[1].before[:, 0]]  # type: ignore[attr-defined]
    guidance = {"true_cfg_scale" if family == "qwen_image" else "guidance_scale": 1.0}

    def draw() -> torch.Tensor:
        return pipeline(
            "a red cat",
            latents=noise,
            num_inference_steps=3,
            height=16,
            width=16,
            max_sequence_length=policy.family.prompt_tokens,
            output_type="latent",
            **guidance,
        ).images

    assert (draw() - ours).abs().max() > 0.05
    pipeline.load_lora_weights(tmp_path)
    torch.testing.assert_close(draw(), ours, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_pipeline_loads_in_diffusers_and_as_a_model(tiny, family, tmp_path):
    policy = make(tiny(family), lora=None)
    policy.save(tmp_path / family)
    pipeline = loaded(tmp_path / family, family)
    ours = weights_of(policy.pipeline)
    assert all(torch.equal(value, ours[name]) for name, value in weights_of(pipeline).items())
    asked, plan = requests(count=1), PLANS["flow_grpo"]
    again = FlowPolicy(replace(policy.config, model=str(tmp_path / family)))
    torch.testing.assert_close(latents(again, asked, plan), latents(policy, asked, plan), atol=1e-5, rtol=1e-5)
