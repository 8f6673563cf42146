"""Settings for a card: where text encoders rest, the autoencoder's precision, kernels of attention, TF32."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.policies.flow.dry_run import FlowDryRun
from mmrl.policies.flow.loading import check_attention_backend
from mmrl.policies.flow.policy import FlowPolicyConfig, switch_tf32
from tests.support.flow_policies import FAMILIES, PLANS, make, requests


@pytest.mark.parametrize("family", FAMILIES)
def test_text_encoders_come_to_the_device_only_to_encode(tiny, monkeypatch, family):
    policy = make(tiny(family), rest_text_encoders=True)
    encoders, moved = policy.family.text_encoders, list[tuple[str, str]]()
    assert encoders and all(name.startswith("text_encoder") for name in encoders)
    to: Any = nn.Module.to

    def noted(module: nn.Module, place: Any, *rest: Any) -> nn.Module:
        name = next((name for name, part in encoders.items() if part is module), None)
        if name is not None:
            moved.append((name, str(place)))
        return to(module, place, *rest)

    monkeypatch.setattr(nn.Module, "to", noted)
    monkeypatch.setattr(type(policy.pipeline.transformer), "to", noted)
    for part in encoders.values():
        monkeypatch.setattr(type(part), "to", noted)
    policy.encoder.encode(["a cat", "a dog"], torch.device("cpu"))
    assert moved == [(name, "cpu") for name in encoders] * 2, "there and back, once for all texts"
    moved.clear()
    policy.rollout(requests(), PLANS["flow_grpo"])
    rounds = 2 if policy.net.passes() == 2 else 1
    assert len(moved) == 2 * rounds * len(encoders), "for the prompts, and for the empty one"
    moved.clear()
    policy.rollout(requests(), PLANS["flow_grpo"])
    assert not moved, "all texts are known"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_autoencoder_may_be_in_bfloat16(tiny, family):
    plain, half = make(tiny(family)), make(tiny(family), vae_dtype="bfloat16")
    assert {weight.dtype for weight in half.pipeline.vae.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in half.pipeline.transformer.parameters()} == {torch.float32}
    one, other = (policy.rollout(requests(), PLANS["flow_grpo"]) for policy in (plain, half))
    assert torch.equal(one.recorded[ROLLOUT_LOGPROBS], other.recorded[ROLLOUT_LOGPROBS]), "latents are decoded, not drawn by it"
    gaps = [
        np.abs(np.asarray(a.image, dtype=float) - np.asarray(b.image, dtype=float)).mean()
        for (_, a), (_, b) in zip(one.samples(), other.samples(), strict=True)
    ]
    assert 0 < max(gaps) < 3


def test_a_plan_counts_them(tiny):
    config = FlowPolicyConfig(tiny("sd3"), height=16, width=16, max_prompt_tokens=3)
    usual = FlowDryRun(config)
    small = FlowDryRun(FlowPolicyConfig(**vars(config) | {"vae_dtype": "bfloat16", "rest_text_encoders": True}))
    encoders = sum(size for name, size in usual.beside().items() if name != "vae")
    assert small.beside() == {"vae": usual.beside()["vae"] // 2}
    assert small.activations()["encode"] == encoders > 0
    assert "encode" not in usual.activations()
    assert small.activations()["decode"] < usual.activations()["decode"]


@pytest.mark.parametrize("family", ["flux", "qwen_image"])
def test_kernels_of_attention_are_chosen_by_name(tiny, family):
    policy = make(tiny(family), attention_backend="_native_math")
    chosen = [getattr(getattr(part, "processor", None), "_attention_backend", None) for part in policy.net.transformer.modules()]
    assert {str(getattr(one, "value", one)) for one in chosen if one is not None} == {"_native_math"}
    one, other = (own.rollout(requests(), PLANS["flow_grpo"]) for own in (policy, make(tiny(family), attention_backend="native")))
    torch.testing.assert_close(one.recorded[ROLLOUT_LOGPROBS], other.recorded[ROLLOUT_LOGPROBS], atol=1e-5, rtol=0)


def test_a_kernel_that_cannot_be_had_is_refused(tiny):
    with pytest.raises(ValueError, match=r"'native' would change nothing: .* SD3Transformer2DModel"):
        make(tiny("sd3"), attention_backend="native")
    with pytest.raises(
        ValueError, match=r"policy.attention_backend 'sage' cannot be had here \(.*\): install it, or leave it out"
    ):
        make(tiny("flux"), attention_backend="sage")
    check_attention_backend(None)


def test_tf32_is_for_float32_and_not_for_runs_that_repeat(tiny, monkeypatch):
    matmul = SimpleNamespace(allow_tf32=False)
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    make(tiny("sd3"), tf32=True)
    assert matmul.allow_tf32
    make(tiny("sd3"))
    assert not matmul.allow_tf32
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with pytest.raises(ValueError, match="exclude each other"):
        switch_tf32(True)
    switch_tf32(False)
