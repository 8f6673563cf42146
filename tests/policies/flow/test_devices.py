"""On a device: what crosses between it and the host, where text encoders rest, the autoencoder's precision, kernels, TF32."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Reading, Rollouts
from mmrl.policies.flow.dry_run import FlowDryRun
from mmrl.policies.flow.loading import check_attention_backend
from mmrl.policies.flow.net import Uploads, send_home
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig, switch_tf32
from tests.support.devices import META, SecondDevice
from tests.support.flow_policies import FAMILIES, PLANS, make, prompts, requests, trace_of
from tests.support.refused import refused


def on_second_device(policy: FlowPolicy) -> FlowPolicy:
    """The policy with its transformer elsewhere; its embeddings were made before, and it decodes nothing."""
    device = policy.net.device
    policy.encoder([prompt.text for prompt in prompts()], device)
    policy.encoder.empty(device)
    policy.net.transformer.to(META)
    policy.decoder = lambda latents, size=None: list[object]([None] * len(latents))
    return policy


def latents_of(rollouts: Rollouts) -> Tensor:
    (latents,) = trace_of(rollouts).latents.parts
    return latents


WAYS = [
    pytest.param(plan, family, marks=() if plan in ("flow_grpo", "branches") and family == "sd3" else pytest.mark.evidence)
    for plan in ("flow_grpo", "cps", "mix", "tree", "branches")
    for family in FAMILIES
]
"""The loop of sampling is one for all families, and of plans that which draws most rows of a few shows the most."""
READ = ["sd3", *(pytest.param(family, marks=pytest.mark.evidence) for family in FAMILIES if family != "sd3")]


@pytest.mark.parametrize(("plan", "family"), WAYS)
def test_latents_go_home_once_however_many_forwards_there_are(tiny, family, plan):
    crossed = []
    for rows in (1, 8):
        policy = on_second_device(make(tiny(family), forward_rows=rows))
        with SecondDevice() as device:
            rollouts = policy.rollout(requests(), PLANS[plan])
        crossed.append(device.crossed)
        flags = [shape for shape in device.crossed.home if len(shape) == 1]
        assert len(flags) == 1 and not device.crossed.looks, "whether velocities were finite, once at the end"
        assert latents_of(rollouts).device.type == "cpu"
    steps = PLANS[plan].num_steps
    assert len(crossed[0].home) == len(crossed[1].home) <= 2 * steps + 3, "states, means, log-probabilities and what was finite"


@pytest.mark.parametrize("family", READ)
def test_embeddings_are_sent_once_a_step(tiny, family):
    policy = on_second_device(make(tiny(family), forward_rows=1, guidance=3.0))
    known = [*policy.encoder.known.values(), policy.encoder.empty(META)]
    shapes = {tuple(value.shape) for condition in known for value in condition.values()}
    used = known[:2] + ([known[-1]] if policy.net.passes() == 2 else [])
    for _ in range(2):
        with SecondDevice() as device:
            policy.rollout(requests(), PLANS["flow_grpo"])
        sent = [shape for shape in device.crossed.up if shape in shapes]
        assert len(sent) == sum(len(condition) for condition in used)


@pytest.mark.parametrize("family", READ)
def test_readings_bring_home_what_was_asked_for_alone(tiny, family):
    policy = on_second_device(make(tiny(family), forward_rows=1))
    with SecondDevice():
        rollouts = policy.rollout(requests(), PLANS["flow_grpo"])
    mask = rollouts.action_mask
    with SecondDevice() as device, torch.no_grad():
        found = policy.read(rollouts.trace, [LOGPROBS], mask)
    assert device.crossed.home == [(int(mask.sum()),)] and not device.crossed.looks
    assert found[LOGPROBS].shape == mask.shape and found[LOGPROBS].device.type == "cpu"
    with SecondDevice() as device, torch.no_grad():
        policy.read(rollouts.trace, [LOGPROBS, Reading("mean", "policy")], mask)
    assert len(device.crossed.home) == 2


def test_copies_are_those_of_their_embeddings_and_none_is_made_on_a_cpu():
    uploads, x = Uploads(), torch.randn(3)
    one, two = ({"embeds": torch.randn(n)} for n in (2, 3))
    assert send_home(x) is x and uploads([one], torch.device("cpu"))[0] is one and not uploads.sent
    first = uploads([one, two, one], META)
    assert first[0] is first[2] and [len(x["embeds"]) for x in first] == [2, 3, 2]
    assert uploads([two], META)[0] is first[1]
    uploads.clear()
    assert uploads([two], META)[0] is not first[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_draws_and_reads_as_a_cpu_does(tiny, family):
    from accelerate import Accelerator

    found = []
    for cpu in (True, False):
        policy = make(tiny(family))
        policy.prepare(Accelerator(cpu=cpu))
        rollouts = policy.rollout(requests(), PLANS["flow_grpo"])
        read = policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS]
        torch.testing.assert_close(read.detach(), rollouts.recorded[ROLLOUT_LOGPROBS], atol=1e-5, rtol=0)
        found.append((latents_of(rollouts), read.detach()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


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
    refused(r"'native' would change nothing: .* SD3Transformer2DModel", make, tiny("sd3"), attention_backend="native")
    with pytest.raises(ValueError, match=r"policy.attention_backend 'sage' cannot be had here \(.*\): install it, or leave it"):
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
    refused("exclude each other", switch_tf32, True)
    switch_tf32(False)
