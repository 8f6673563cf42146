"""Memory: gradients that go, moments and copies that rest on the CPU, and micro-batches that find their size."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
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
from mmrl.training.resources.micro_batch import BELOW, LEAST, MOST, START, HostRoom, MicroBatches, room_of
from mmrl.training.settings import TrainSettings
from mmrl.training.stopping import TrainingStoppedError
from mmrl.training.trainer import Records
from tests.support.fakes import FakeAccelerator, FakeTextPolicy, PlayedRanks
from tests.support.rows import make_batch
from tests.support.trainers import make_trainer
from tests.support.trainers import weights as weights_of


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
    assert torch.equal(*map(weights_of, runs))
    with FakeTensorMode():
        weight = nn.Parameter(torch.zeros(4, device="cuda"))
        optimizer = torch.optim.AdamW([weight])
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        put_to_rest(optimizer, "cpu")
        assert {x.device.type for x in tensors_in(dict(optimizer.state[weight]))} == {"cpu"}


def test_what_is_spread_over_processes_cannot_rest_and_muon_wants_whole_matrices():
    with pytest.raises(ValueError, match=r"optimizer\.kind is 'muon', which looks at whole matrices"):
        check_optimizer(OptimizerSettings("muon"), Ranks(FakeAccelerator(2, "FSDP")))
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


def stepped() -> tuple[nn.Linear, Weights, torch.optim.Optimizer]:
    """A layer, its weights and a reference, and the optimizer of its first step."""
    net = nn.Linear(64, 32)
    weights, optimizer = Weights(net, {"ref"}, 0.9), torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    return net, weights, optimizer


def test_a_checkpoint_copies_every_tensor_once():
    net, weights, optimizer = stepped()
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


def test_one_process_builds_the_state():
    _, weights, optimizer = stepped()
    with Copies() as copies:
        state = {"policy": weights.state_dict(keep=False), "optimizer": whole_state(optimizer, keep=False)}
    assert copies.bytes == 0 and tensors_in(state) == []
    asked: list[bool] = []
    engine: Any = SimpleNamespace(state=lambda keep: asked.append(keep))
    whole_state(optimizer, engine, keep=False)
    assert asked == [False], "it must help to gather"


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


GRPO = PRESETS["grpo"]


def sizes_of(positions: float, notes: Path | None = None, ranks: Ranks | None = None) -> MicroBatches:
    """On a device with room for so many positions at a time."""
    card: Any = SimpleNamespace(begin=lambda: None, times_more=lambda fill: fill * positions / sizes.size)
    sizes = MicroBatches(FakeTextPolicy(), GRPO, "auto", ranks or Ranks(), notes, card)
    return sizes


def run(sizes: MicroBatches, fits: int) -> list[int]:
    """The sizes that were tried until one fitted."""
    tried: list[int] = []

    def work() -> None:
        tried.append(sizes.size)
        if sizes.size > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    sizes.fit(work, grow=True)
    return tried


def test_it_doubles_while_there_is_room_and_out_of_memory_halves_and_never_comes_back_to_what_failed():
    sizes = sizes_of(10_000)
    assert [run(sizes, MOST)[0] for _ in range(5)] == [START, 2 * START, 8192, 8192, 8192], "0.85 of 10,000 is no tenth more"
    sizes = sizes_of(1e9)
    tried = [run(sizes, 10_000) for _ in range(6)]
    assert tried[:4] == [[2048], [4096], [8192], [16384, 8192]]
    assert tried[4] == [int(BELOW * 16384), 6144]
    assert all(size < 12288 for step in tried[5:] for size in step)


def test_what_fits_is_remembered_and_half_a_file_is_not(tmp_path: Path):
    notes = tmp_path / "some" / "size.json"
    first = sizes_of(1e9, notes)
    for _ in range(4):
        run(first, 10_000)
    again = sizes_of(1e9, notes)
    assert (again.size, again.too_large) == (first.size, first.too_large) and again.size > START
    for text in ("{", '{"size": 1}', "[]", '{"size": 3, "too_large": 9}', '{"size": "x", "too_large": 9}'):
        notes.write_text(text)
        assert sizes_of(1e9, notes).size == START
    notes.unlink()
    notes.mkdir()
    run(sizes_of(1e9, notes), MOST)


def test_the_smallest_size_is_not_halved_for_ever():
    sizes = sizes_of(1e9)
    with pytest.raises(TrainingStoppedError, match=r'micro_batch = "auto" ran out of memory with 64 positions .*checkpointing'):
        run(sizes, 0)
    assert sizes.size < LEAST


@pytest.mark.parametrize(("turns", "mine"), [(1, [0, 1]), (2, [0, 2]), (4, [2, 6])])
def test_processes_that_read_rows_together_have_them_one_after_the_other(turns: int, mine: list[int]):
    """The third of four processes, of which the first has three parts of its rows."""
    policy: Any = FakeTextPolicy()
    policy.turns = turns
    sizes = MicroBatches(policy, GRPO, policy.length, PlayedRanks(lambda x: [3, 2, x, 0], 2, 4))
    cut = sizes.cut(make_batch(torch.ones(2, policy.length), torch.ones(2), {}))
    assert len(cut) == 3 * turns
    assert [i for i, part in enumerate(cut) if bool(part.share.any())] == mine
    # who has no turn has nothing to read either
    assert turns == 1 or [i for i, part in enumerate(cut) if bool(part.rollouts.action_mask.any())] == mine


def test_several_processes_grow_by_the_smallest_room_and_stop_where_one_runs_out(tmp_path: Path):
    """The other process has half of this one's room, and the same of all else."""
    ranks = PlayedRanks(lambda x: [x, x / 2] if isinstance(x, float) else [x, x])
    sizes = sizes_of(1e5, notes := tmp_path / "size.json", ranks)
    assert [run(sizes, MOST)[0] for _ in range(6)][-1] < 0.86 * 5e4
    failed = sizes.size
    with pytest.raises(TrainingStoppedError, match=f"memory with {failed} positions .*several processes cannot go back"):
        run(sizes, failed - 1)
    assert json.loads(notes.read_text())["size"] == failed // 2, "the next run begins with half"


def test_a_number_is_kept_with_its_error_and_a_deterministic_run_wants_one():
    with pytest.raises(ValueError, match='deterministic is true and micro_batch is "auto"'):
        TrainSettings(deterministic=True, micro_batch="auto")
    sizes = MicroBatches(FakeTextPolicy(), GRPO, 512, Ranks())
    assert sizes.size == 512 and sizes.room is None and sizes.state_dict() == {}
    with pytest.raises(torch.OutOfMemoryError):
        run(sizes, 100)


class Small(FakeTextPolicy):
    """Runs out of memory at forwards with a gradient of more than `rows` rows, and halfway through an update's gradients."""

    rows = 1000
    seen: list[int]

    def read(self, trace: Any, readings: Any, mask: Tensor) -> Any:
        if torch.is_grad_enabled():
            self.seen = [*getattr(self, "seen", []), len(mask)]
            if len(mask) > self.rows:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return super().read(trace, readings, mask)


def trained(policy: FakeTextPolicy, micro_batch: Any, act: Callable[[Any], None] = lambda trainer: None, **more: Any) -> Any:
    trainer = make_trainer(GRPO, policy=policy, micro_batch=micro_batch, steps=3, **more)
    act(trainer)
    for _ in range(3):
        trainer.step()
    return trainer


def test_a_run_that_ran_out_of_memory_trains_as_one_that_did_not(monkeypatch: pytest.MonkeyPatch):
    """START positions are 512 rows of the fake, more than there are; the card takes 5 of 32."""
    monkeypatch.setattr("mmrl.training.resources.micro_batch.START", 128)
    monkeypatch.setattr("mmrl.training.resources.micro_batch.LEAST", 4)
    small = Small()
    small.rows = 5
    auto, plain = trained(small, "auto"), trained(FakeTextPolicy(), 1000)
    assert max(small.seen) > 5 and auto.sizes.size // 4 <= 5
    torch.testing.assert_close(weights_of(auto), weights_of(plain), rtol=1e-4, atol=1e-6)
    size = auto.state_dict()["sizes"]
    resumed = make_trainer(GRPO, policy=Small(), micro_batch="auto", steps=3)
    resumed.load_state_dict(auto.state_dict())
    assert resumed.sizes.state_dict() == size, "a resumed run cuts as this one would have"


def test_readings_without_gradient_back_off_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    policy, failed = FakeTextPolicy(), []
    read = policy.read

    def once(*asked: Any) -> Any:
        if not torch.is_grad_enabled() and not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return read(*asked)

    monkeypatch.setattr(policy, "read", once)
    trainer = trained(policy, "auto", records=Records(sizes=tmp_path / "size.json"))
    assert failed and trainer.sizes.too_large == START and json.loads((tmp_path / "size.json").read_text())["too_large"] == START


def write_proc(folder: Path, resident: int, peak: int, free: int, limit: str = "max", used: int = 0) -> HostRoom:
    (folder / "self").mkdir(exist_ok=True)
    (folder / "self/status").write_text(f"Name: x\nVmHWM:\t{peak} kB\nVmRSS:\t{resident} kB\n")
    (folder / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {free} kB\n")
    (folder / "memory.max").write_text(limit)
    (folder / "memory.current").write_text(str(used * 1024))
    return HostRoom(folder, folder)


def test_room_of_a_machine_is_half_of_what_is_free_below_the_containers_limit(tmp_path: Path):
    for limited, free in (({}, 8000), ({"limit": str(3000 * 1024), "used": 1000}, 2000)):
        room = write_proc(tmp_path, 1000, 1000, 8000, **limited)
        room.begin()
        write_proc(tmp_path, 1200, 1500, 1)
        assert room.times_more(0.5) == 0.5 * 0.5 * free / 500, "what was free when it began, over what it took at most"
    nowhere = HostRoom(tmp_path / "none", tmp_path / "none")
    nowhere.begin()
    assert nowhere.times_more(1.0) == 0, "nobody can say: nothing grows"


def test_room_of_this_machine_is_measured():
    room = room_of([torch.zeros(1)])
    room.begin()
    torch.ones(2**24)
    assert room.times_more(1.0) > 0


@pytest.mark.gpu
def test_room_of_a_gpu_is_measured():
    room = room_of([torch.zeros(1, device="cuda")])
    room.begin()
    torch.ones(2**26, device="cuda")
    free, _ = torch.cuda.mem_get_info()
    assert room.times_more(1.0) == pytest.approx(free / 2**28, rel=0.1)
