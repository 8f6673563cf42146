"""What trains, its reference and its averages, of one class for models that write and that draw: readings, states, accelerate."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mmrl.algorithms.ema_decay import RampDecay
from mmrl.core.readings import EMA_LOGPROBS, LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Rollouts
from mmrl.lab.tiny.flow import pipelines
from mmrl.policies.shared.dry_run import StillWeights
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.shared.weights import Weights
from tests.support import flow_policies, text_policies
from tests.support.each import for_each
from tests.support.refused import refused
from tests.support.text_policies import FP32_BOUND, logprobs


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def move(net: nn.Module, by: float) -> None:
    with torch.no_grad():
        for weight in net.parameters():
            weight += by


def test_the_weights_that_are_looked_through_are_named():
    net = network()
    weights = Weights(net, {"ref"}, 0.9)
    before = deepcopy(net.state_dict())
    move(net, 1.0)
    assert weights.active == "policy"
    with weights.swapped_in("ref"):
        assert weights.active == "ref" and not torch.is_grad_enabled()
        assert all(torch.equal(net.state_dict()[name], before[name]) for name in before)
    with weights.swapped_in("policy"):
        assert weights.active == "policy" and torch.is_grad_enabled()
    assert weights.active == "policy"
    torch.testing.assert_close(net.state_dict()["0.weight"], before["0.weight"] + 1.0)


def test_a_state_without_a_number_of_updates_is_loaded():
    """Text policies saved none while averages could only follow at a constant rate."""
    weights = Weights(network(), {"ema"}, 0.9, prefix="0.")
    state = weights.state_dict()
    assert set(state["weights"]) == {"weight", "bias", "1.weight", "1.bias"}, "the prefix is dropped where it stands"
    del state["num_updates"]
    weights.follow()
    weights.load_state_dict(state)
    assert weights.num_updates == 0


@for_each("table, change, said", [
    ("weights", lambda weight: weight[:1], r"weights do not fit this policy: 0\.weight is float32 \[1, 3\] there and"),
    ("weights", lambda weight: weight.mean(), r"0\.weight is float32 \[\] there and float32 \[2, 3\] here: resume with"),
    ("weights", torch.Tensor.half, r"0\.weight is float16 \[2, 3\] there and float32 \[2, 3\] here"),
    ("ema", lambda weight: weight.T, r"state's ema do not fit this policy: 0\.weight is float32 \[3, 2\] there"),
    ("ema", None, r"ema do not fit this policy: 0\.weight is absent there"),
])  # fmt: skip
def test_saved_tensors_of_other_shapes_or_types_are_refused(table: str, change, said: str):
    """A copy would stretch them over the weights."""
    weights = Weights(network(), {"ema"}, 0.9)
    state = weights.state_dict()
    found = state["weights"] if table == "weights" else state["shadows"][table]
    value = found.pop("0.weight")
    found |= {"0.weight": change(value)} if change else {}
    before = weights.state_dict()["weights"]
    refused(said, weights.load_state_dict, state)
    assert all(torch.equal(weights.state_dict()["weights"][name], value) for name, value in before.items())


class Adapted(nn.Module):
    """A layer with an adapter, as peft makes them."""

    _disable_adapters = False
    scaling: ClassVar = {"default": 1.0}
    _active_adapter = "default"

    def __init__(self, trains: bool = True) -> None:
        super().__init__()
        self.base = nn.Linear(2, 2).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(2, 1, bias=False).requires_grad_(trains)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(1, 2, bias=False).requires_grad_(trains)})
        nn.init.zeros_(self.get_parameter("lora_B.default.weight"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = 0.0 if self._disable_adapters else self.lora_B["default"](self.lora_A["default"](x))
        return self.base(x) + added


def test_the_reference_of_a_fresh_adapter_is_the_bare_model():
    net = nn.Sequential(Adapted(), Adapted(trains=False))
    weights = Weights(net, {"ref"}, 0.9)
    move(net, 0.0)
    with weights.swapped_in("ref"):
        assert all(layer._disable_adapters for layer in net)
    assert not any(layer._disable_adapters for layer in net)
    # an adapter that was loaded and does not train is part of the reference
    net = nn.Sequential(Adapted(), Adapted(trains=False))
    nn.init.ones_(net.get_parameter("1.lora_B.default.weight"))
    # so are other weights that train
    for one, count in ((net, 2), (nn.Sequential(Adapted(), nn.Linear(2, 2)), 1)):
        with Weights(one, {"ref"}, 0.9).swapped_in("ref"):
            assert not any(layer._disable_adapters for layer in one[:count])


class Looks(TorchDispatchMode):
    """Counts how often a program asks whether anything is not 0."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._overloadpacket is torch.ops.aten.any
        return func(*args, **(kwargs or {}))


def test_the_adapters_of_a_reference_are_looked_at_again_only_when_they_were_written():
    net = nn.Sequential(Adapted(), Adapted())
    weights = Weights(net, {"ref"}, 0.9)
    weights.end_step(rebase=True)
    moved = {name: torch.ones_like(weight) for name, weight in weights.named.items()}
    state = {**weights.state_dict(), "shadows": {"ref": moved}}
    with Looks() as looks:
        for _ in range(3):
            with weights.swapped_in("ref"):
                assert all(layer._disable_adapters for layer in net)
        assert looks.count == 2
        weights.load_state_dict(state)
        with weights.swapped_in("ref"):
            assert not any(layer._disable_adapters for layer in net)


def adapter(outer: float = 0.0) -> nn.Sequential:
    """A layer with an adapter, which adds nothing at first unless `outer` is another number."""
    torch.manual_seed(0)
    net = nn.Sequential(Adapted())
    nn.init.constant_(net.get_parameter("0.lora_B.default.weight"), outer)
    return net


def seen(weights: Weights, model: str) -> torch.Tensor:
    with weights.swapped_in(model):
        return weights.module(torch.ones(1, 2)).detach()


def move_trained(weights: Weights) -> None:
    with torch.no_grad():
        for weight in weights.named.values():
            weight += 0.5


def test_a_reference_without_an_adapter_is_kept_from_its_first_rebase_on():
    weights = Weights(adapter(), {"ref"}, 0.9)
    bare = seen(weights, "policy")
    assert weights.shadows["ref"].weights == [] and weights.state_dict()["shadows"] == {"ref": {}}
    move_trained(weights)
    assert torch.equal(seen(weights, "ref"), bare) and not torch.equal(bare, seen(weights, "policy"))
    weights.end_step(rebase=True)
    moved = seen(weights, "policy")
    move_trained(weights)
    assert torch.equal(seen(weights, "ref"), moved) and len(weights.shadows["ref"].weights) == 2
    assert weights.state_dict()["shadows"]["ref"].keys() == weights.named.keys()


@pytest.mark.parametrize("rebased", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_states_with_and_without_a_copy_go_on(rebased: bool, begun: bool):
    """`begun`: the other process built its reference from an adapter that adds something, so it has a copy."""
    weights = Weights(adapter(), {"ref"}, 0.9)
    move_trained(weights)
    weights.end_step(rebase=rebased)
    move_trained(weights)
    again = Weights(adapter(0.1 if begun else 0.0), {"ref"}, 0.9)
    again.load_state_dict(weights.state_dict())
    assert all(torch.equal(seen(again, model), seen(weights, model)) for model in ("ref", "policy"))
    assert bool(again.shadows["ref"].weights) == rebased


def test_an_adapter_that_adds_something_has_a_copy_from_the_start():
    weights = Weights(adapter(0.1), {"ref"}, 0.9)
    before = seen(weights, "policy")
    move_trained(weights)
    assert torch.equal(seen(weights, "ref"), before)


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


def test_a_target_that_no_layer_is_called_is_refused(kind: Kind):
    refused("no layer of the model is called '(to_q|qq)'", kind[0], set(), lora=replace(LORA, targets=("to_q", "qq")))


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
    refused("other averages or references", make({"ref"}, lora=lora).load_state_dict, state)
    refused("other weights", make({"ref", "ema"}, lora=None if lora else LORA).load_state_dict, state)


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


def test_still_weights_are_kept_in_place_of_the_networks_and_have_gradients_where_these_are_on():
    still = StillWeights()
    kept = still.keeper()(nn.Linear(3, 2), {"ref", "ema"}, 0.9, False, "device")
    assert {name: [weight.shape for weight in shadow.weights] for name, shadow in kept.shadows.items()} == {
        name: [torch.Size([])] for name in ("ref", "ema")
    }
    still.zero().backward()
    assert still.weight.grad is not None and not still.weight.grad.any()
    with torch.no_grad():
        assert still.zero() == 0 and not still.zero().requires_grad
