"""Latents and embeddings cross between the host and the device once, and nothing is asked of the device on the way."""

import pytest
import torch
from torch import Tensor

from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Reading, Rollouts
from mmrl.policies.flow.net import Uploads, send_home
from mmrl.policies.flow.policy import FlowPolicy, FlowTrace
from tests.support.flow_policies import FAMILIES, PLANS, make, prompts, requests
from tests.support.second_device import META, SecondDevice


def on_second_device(policy: FlowPolicy) -> FlowPolicy:
    """The policy with its transformer elsewhere; its embeddings were made before, and it decodes nothing."""
    device = policy.net.device
    policy.encoder([prompt.text for prompt in prompts()], device)
    policy.encoder.empty(device)
    policy.net.transformer.to(META)
    policy.decoder = no_images
    return policy


def no_images(latents: Tensor, size: object = None) -> list[object]:
    return [None] * len(latents)


def latents_of(rollouts: Rollouts) -> Tensor:
    assert isinstance(rollouts.trace, FlowTrace)
    (latents,) = rollouts.trace.latents.parts
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


def test_a_velocity_that_is_not_finite_names_the_first_step_and_its_prompt(tiny):
    policy = make(tiny("sd3"))
    forward, calls = policy.forward, []

    def spoiled(asked, conditions, guidance=None):
        calls.append(1)
        v = forward(asked, conditions, guidance).clone()
        if len(calls) in (2, 3):
            v[5:7] = torch.nan
        return v

    policy.forward = spoiled
    with pytest.raises(ValueError, match=r"'dogs' is not finite at step 2 of 4, as for 2 of 8 latents"):
        policy.rollout(requests(), PLANS["flow_grpo"])


def test_on_a_cpu_nothing_is_copied():
    x, condition = torch.randn(3), {"embeds": torch.randn(2)}
    assert send_home(x) is x
    uploads = Uploads()
    assert uploads([condition], torch.device("cpu"))[0] is condition and not uploads.sent


def test_copies_are_those_of_their_embeddings():
    uploads = Uploads()
    one, two = ({"embeds": torch.randn(n)} for n in (2, 3))
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
