"""One class keeps the weights of text and image models: the reference, and averages that follow at any rate."""

from copy import deepcopy
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mmrl.algorithms.ema_decay import RampDecay, SteadyDecay, WarmDecay
from mmrl.policies.shared.weights import Weights
from tests.support.each import for_each


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def move(net: nn.Module, by: float) -> None:
    with torch.no_grad():
        for weight in net.parameters():
            weight += by


@pytest.mark.parametrize("decay", [0.25, RampDecay(slope=0.25, most=0.6), WarmDecay(every=2), SteadyDecay(0.9)], ids=str)
def test_the_average_follows_at_any_rate(decay):
    net = network()
    weights = Weights(net, {"ema"}, decay)
    average = [weight.detach().clone() for weight in net.parameters()]
    for update in range(4):
        move(net, 0.5)
        weights.follow()
        d = decay if isinstance(decay, float) else decay(update)
        average = [d * a + (1 - d) * b.detach() for a, b in zip(average, net.parameters(), strict=True)]
        for found, expected in zip(weights.shadows["ema"].weights, average, strict=True):
            torch.testing.assert_close(found, expected)
    assert weights.num_updates == 4


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


def test_a_state_goes_on_with_its_number_of_updates():
    weights = Weights(network(), {"ema"}, RampDecay(slope=0.1))
    for _ in range(3):
        weights.follow()
    again = Weights(network(), {"ema"}, RampDecay(slope=0.1))
    again.load_state_dict(weights.state_dict())
    assert again.num_updates == 3


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
    with pytest.raises(ValueError, match=said):
        weights.load_state_dict(state)
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
        nn.init.zeros_(outer_weight(self))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = 0.0 if self._disable_adapters else self.lora_B["default"](self.lora_A["default"](x))
        return self.base(x) + added


def outer_weight(module: nn.Module, name: str = "lora_B.default.weight") -> nn.Parameter:
    return dict(module.named_parameters())[name]


def test_the_reference_of_a_fresh_adapter_is_the_bare_model():
    net = nn.Sequential(Adapted(), Adapted(trains=False))
    weights = Weights(net, {"ref"}, 0.9)
    move(net, 0.0)
    with weights.swapped_in("ref"):
        assert all(layer._disable_adapters for layer in net)
    assert not any(layer._disable_adapters for layer in net)
    # an adapter that was loaded and does not train is part of the reference
    net = nn.Sequential(Adapted(), Adapted(trains=False))
    nn.init.ones_(outer_weight(net, "1.lora_B.default.weight"))
    weights = Weights(net, {"ref"}, 0.9)
    with weights.swapped_in("ref"):
        assert not any(layer._disable_adapters for layer in net)


def test_other_trained_weights_are_part_of_the_reference():
    net = nn.Sequential(Adapted(), nn.Linear(2, 2))
    with Weights(net, {"ref"}, 0.9).swapped_in("ref"):
        assert not net[0]._disable_adapters


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
    nn.init.constant_(outer_weight(net, "0.lora_B.default.weight"), outer)
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
