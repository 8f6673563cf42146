"""Memory by counting tensors: gradients that go, moments and copies that rest on the CPU, states that are copied once."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmrl.algorithms.presets import PRESETS
from mmrl.core.ranks import OwnState, Ranks
from mmrl.policies.shared.weights import Weights
from mmrl.training.checkpoints.state import copy_state
from mmrl.training.optim import OptimizerSettings, can_fuse, check_optimizer, put_to_rest, whole_state, woken
from tests.support.fakes import FakeAccelerator, FakeTextPolicy
from tests.support.trainers import make_trainer


def bytes_of(tensors: Iterable[Any]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors if isinstance(x, Tensor))


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, dict):
        return [x for item in value.values() for x in tensors_in(item)]
    return [value] if isinstance(value, Tensor) else []


class Copies(TorchDispatchMode):
    """Counts the bytes that are copied to new memory."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default):
            self.bytes += bytes_of([out])
        return out


def test_gradients_are_gone_before_the_next_sampling():
    seen: list[list[Any]] = []

    class Watched(FakeTextPolicy):
        def rollout(self, requests: Any, sampling: Any = None) -> Any:
            seen.append([weight.grad for weight in self.parameters()])
            return super().rollout(requests, sampling)

    trainer = make_trainer(PRESETS["dr_grpo"], policy=Watched())
    trainer.step()
    trainer.step()
    assert len(seen) == 2 and all(gradient is None for gradients in seen for gradient in gradients)
    assert all(weight.grad is None for weight in trainer.policy.parameters())


def on_a_card(rest: Any, steps: int = 2) -> tuple[list[int], list[int], set[str]]:
    """Bytes of moments on a GPU that is not there: before each step, in it; and where they lie afterwards."""
    with FakeTensorMode():
        weight = nn.Parameter(torch.zeros(64, 32, device="cuda"))
        optimizer = torch.optim.AdamW([weight], lr=1e-3)

        def held() -> int:
            return bytes_of(x for own in optimizer.state.values() for x in own.values() if x.device.type == "cuda" and x.ndim)

        before, during = list[int](), list[int]()
        for _ in range(steps):
            weight.grad = torch.ones_like(weight)
            before.append(held())
            with woken(optimizer, rest):
                optimizer.step()
                during.append(held())
        places = {x.device.type for own in optimizer.state.values() for x in own.values() if x.ndim}
    return before, during, places


def test_moments_rest_on_the_cpu_between_updates():
    size = 2 * 64 * 32 * 4
    assert on_a_card("cpu") == ([0, 0], [size, size], {"cpu"})
    assert on_a_card("device") == ([0, size], [size, size], {"cuda"})


def test_moments_that_rest_train_the_same_and_are_saved_and_loaded():
    runs = [make_trainer(PRESETS["grpo"], optimizer=OptimizerSettings(lr=1e-2, rest=rest)) for rest in ("device", "cpu")]
    for trainer in runs:
        trainer.step()
        trainer.load_state_dict(trainer.state_dict())
        trainer.step()
    for a, b in zip(*(trainer.policy.parameters() for trainer in runs), strict=True):
        assert torch.equal(a, b)
    with FakeTensorMode():
        weight = nn.Parameter(torch.zeros(4, device="cuda"))
        optimizer = torch.optim.AdamW([weight])
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        put_to_rest(optimizer, "cpu")
        assert {x.device.type for x in tensors_in(dict(optimizer.state[weight]))} == {"cpu"}


def test_what_is_spread_over_processes_cannot_rest():
    with pytest.raises(ValueError, match=r"optimizer\.rest is 'cpu', but FSDP or DeepSpeed"):
        check_optimizer(OptimizerSettings(rest="cpu"), Ranks(FakeAccelerator(2, "FSDP")))
    check_optimizer(OptimizerSettings(), Ranks(FakeAccelerator(2, "FSDP")))
    with pytest.raises(ValueError, match=r"policy\.copies_on is 'cpu'"):
        Weights(nn.Linear(2, 2), {"ref"}, sharded=True, rest="cpu")


def test_copies_rest_on_the_cpu_and_are_looked_through_on_the_card():
    with FakeTensorMode():
        net = nn.Linear(3, 2, device="cuda")
        weights = Weights(net, {"ref", "ema"}, 0.9, rest="cpu")
        copies = [x for shadow in weights.shadows.values() for x in shadow.weights]
        assert {x.device.type for x in copies} == {"cpu"} and len(copies) == 4
        with weights.swapped_in("ref"):
            assert net.weight.device.type == "cuda"
        weights.follow()
        assert {x.device.type for shadow in weights.shadows.values() for x in shadow.weights} == {"cpu"}
        left = Weights(net, {"ref"}, 0.9)
        assert {x.device.type for x in left.shadows["ref"].weights} == {"cuda"}


def test_a_checkpoint_copies_every_tensor_once():
    net = nn.Linear(64, 32)
    weights = Weights(net, {"ref"}, 0.9)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    kept = bytes_of(net.parameters()) * 4 + 8
    with Copies() as copies:
        state = {"policy": weights.state_dict(), "optimizer": whole_state(optimizer)}
        own = copy_state(state)
    assert copies.bytes == kept, "weights, a reference and two moments; two counts of steps"
    live = {x.untyped_storage().data_ptr() for x in [*net.parameters(), *weights.shadows["ref"].weights]}
    live |= {x.untyped_storage().data_ptr() for own in optimizer.state.values() for x in own.values()}
    assert not live & {x.untyped_storage().data_ptr() for x in tensors_in(own)}
    assert type(own["policy"]) is dict, "what is written holds no class of mmrl's"


def test_copies_of_what_is_not_ones_own_are_made():
    live = torch.zeros(3)
    assert copy_state({"a": live})["a"] is not live
    assert copy_state(OwnState(a=live))["a"].data_ptr() == live.data_ptr()
    assert copy_state({"a": [OwnState(b=live), live]})["a"][1].data_ptr() != live.data_ptr()


class FakeEngine:
    """A library that owns the update, as far as states ask it."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def backward(self, loss: Tensor, last: bool) -> None: ...
    def norm(self, limit: float) -> float:
        return 0.0

    def step(self) -> None: ...
    def load(self, state: Any) -> None: ...
    def state(self, keep: bool = True) -> Any:
        self.asked.append(keep)
        return {}


def test_one_process_builds_the_state():
    net = nn.Linear(64, 32)
    weights, optimizer = Weights(net, {"ref"}, 0.9), torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    with Copies() as copies:
        state = {"policy": weights.state_dict(keep=False), "optimizer": whole_state(optimizer, keep=False)}
    assert copies.bytes == 0 and tensors_in(state) == []
    engine = FakeEngine()
    whole_state(optimizer, engine, keep=False)
    assert engine.asked == [False], "it must help to gather"


def test_weights_on_a_card_are_updated_by_one_kernel(monkeypatch: pytest.MonkeyPatch):
    with FakeTensorMode():
        card, host = nn.Parameter(torch.zeros(3, device="cuda")), nn.Parameter(torch.zeros(3))
    assert can_fuse([card]) is True and can_fuse([card, host]) is None and can_fuse([host]) is None
    optimizer, _ = OptimizerSettings().build([card], 1)
    assert optimizer.param_groups[0]["fused"] is True
    optimizer, _ = OptimizerSettings().build([nn.Parameter(torch.zeros(3))], 1)
    assert not optimizer.param_groups[0]["fused"]


@pytest.mark.gpu
def test_the_kernel_of_a_card_updates_as_the_cpu_does():
    found: list[Tensor] = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(100).to(device))
        optimizer, _ = OptimizerSettings(lr=1e-2, rest="cpu").build([weight], 1)
        for i in range(3):
            weight.grad = torch.linspace(-1, 1, 100, device=device) * (i + 1)
            with woken(optimizer, "cpu"):
                optimizer.step()
        found.append(weight.detach().cpu())
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
