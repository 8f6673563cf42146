"""What trains, its reference and its average, of policies that write and that draw: readings, states, and accelerate."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from mmrl.algorithms.ema_decay import RampDecay
from mmrl.core.readings import EMA_LOGPROBS, LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Rollouts
from mmrl.lab.tiny.flow import pipelines
from mmrl.policies.shared.lora import LoraSettings
from tests.support import flow_policies, text_policies
from tests.support.faults import disable_adapters
from tests.support.text_policies import FP32_BOUND, logprobs

Kind = tuple[Callable[..., Any], Callable[..., Rollouts]]
"""Makes a policy from its shadows and settings, and lets it sample under weights of a name."""
LORA = LoraSettings(rank=4, alpha=8)
BOTH = pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(pipelines.build("sd3", tmp_path_factory.mktemp("sd3") / "sd3"))


@pytest.fixture(params=["text", "flow"])
def kind(request: pytest.FixtureRequest, tiny: Callable[[str], str], pipeline: str) -> Kind:
    room: Any = text_policies if request.param == "text" else flow_policies
    asked = room.mixed() if request.param == "text" else room.requests()
    plan = None if request.param == "text" else room.PLANS["flow_grpo"]
    folder = tiny("qwen3_vl") if request.param == "text" else pipeline
    return partial(room.make, folder), lambda policy, model="policy": policy.rollout(
        [replace(one, model=model) for one in asked], plan
    )


def step(policy: Any, rollouts: Rollouts, lr: float = 1e-2) -> None:
    optimizer = torch.optim.SGD(policy.parameters(), lr=lr)
    (-logprobs(policy, rollouts).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
    policy.advance()


def test_reference_of_a_fresh_adapter_is_the_model_without_it(kind: Kind):
    make, draw = kind
    policy = make({"ref"}, lora=LORA)
    rollouts = draw(policy)
    step(policy, rollouts)
    reference = policy.read(rollouts.trace, [REF_LOGPROBS], rollouts.action_mask)[REF_LOGPROBS]
    assert (reference - logprobs(policy, rollouts).detach()).abs().max() > 1e-3
    with pytest.MonkeyPatch.context() as patch:
        disable_adapters(policy, patch)
        torch.testing.assert_close(reference, logprobs(policy, rollouts).detach(), atol=FP32_BOUND, rtol=0)


def test_a_reading_under_a_shadow_leaves_the_graph_of_the_live_one_intact(kind: Kind):
    make, draw = kind
    policy = make({"ref"})
    rollouts = draw(policy)
    step(policy, rollouts)
    found = list[Any]()
    for between in (False, True):
        live = logprobs(policy, rollouts)
        if between:
            policy.read(rollouts.trace, [REF_LOGPROBS], rollouts.action_mask)
        value = (torch.linspace(0.5, 1.5, live.numel()).reshape(live.shape) * live).sum()
        found.append(torch.autograd.grad(value, policy.parameters(), allow_unused=True, materialize_grads=True))
    for expected, gradient in zip(*found, strict=True):
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("decay", [0.25, lambda updates: 0.25 if updates < 1 else 1.0], ids=["number", "schedule"])
def test_the_average_follows_with_its_decay(kind: Kind, decay: Any):
    make, draw = kind
    policy = make({"ema"}, ema_decay=decay)
    start = [weight.clone() for weight in policy.weights.shadows["ema"].weights]
    step(policy, draw(policy))
    # 0.25 of the start, 0.75 of the new weights
    expected = [0.25 * a + 0.75 * b.detach() for a, b in zip(start, policy.parameters(), strict=True)]
    torch.testing.assert_close(policy.weights.shadows["ema"].weights, expected)
    if callable(decay):
        policy.advance()
        torch.testing.assert_close(policy.weights.shadows["ema"].weights, expected)
    moved = draw(policy, "ema")
    read = policy.read(moved.trace, [EMA_LOGPROBS], moved.action_mask)[EMA_LOGPROBS]
    torch.testing.assert_close(moved.recorded[ROLLOUT_LOGPROBS], read, atol=FP32_BOUND, rtol=0)
    assert (read - logprobs(policy, moved).detach()).abs().max() > 1e-4


@BOTH
def test_state_survives_a_round_trip(kind: Kind, lora: LoraSettings | None):
    make, draw = kind
    make = partial(make, ema_decay=RampDecay(slope=0.1))
    policy = make({"ref", "ema"}, lora=lora)
    rollouts = draw(policy)
    for _ in range(3):
        step(policy, rollouts, lr=1e-3)
    wanted = [LOGPROBS, REF_LOGPROBS, EMA_LOGPROBS]
    values = policy.read(rollouts.trace, wanted, rollouts.action_mask)
    state = policy.state_dict()
    step(policy, rollouts, lr=1e-3)
    after = policy.read(rollouts.trace, [EMA_LOGPROBS], rollouts.action_mask)[EMA_LOGPROBS]
    for other in (policy, make({"ref", "ema"}, lora=lora)):
        other.load_state_dict(state)
        again = other.read(rollouts.trace, wanted, rollouts.action_mask)
        for reading in wanted:
            torch.testing.assert_close(again[reading], values[reading], atol=FP32_BOUND, rtol=0)
        step(other, rollouts, lr=1e-3)
        found = other.read(rollouts.trace, [EMA_LOGPROBS], rollouts.action_mask)[EMA_LOGPROBS]
        torch.testing.assert_close(found, after, atol=FP32_BOUND, rtol=0)
    assert not torch.equal(values[EMA_LOGPROBS], values[REF_LOGPROBS])
    with pytest.raises(ValueError, match="other shadows"):
        make({"ref"}, lora=lora).load_state_dict(state)
    with pytest.raises(ValueError, match="other weights"):
        make({"ref", "ema"}, lora=None if lora else LORA).load_state_dict(state)


def test_accelerate_prepares_the_one_module(kind: Kind):
    from accelerate import Accelerator

    make, draw = kind
    policy = make({"ref"})
    rollouts = draw(policy)
    before = logprobs(policy, rollouts).detach()
    policy.prepare(Accelerator(cpu=True))
    torch.testing.assert_close(logprobs(policy, rollouts).detach(), before)
    step(policy, rollouts)
    values = policy.read(rollouts.trace, [LOGPROBS, REF_LOGPROBS], rollouts.action_mask)
    torch.testing.assert_close(values[REF_LOGPROBS], before)
    assert (values[LOGPROBS].detach() - before).abs().max() > 1e-3
