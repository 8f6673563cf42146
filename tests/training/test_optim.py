"""Optimizers: refusals, Muon in float32 against torch's and a singular value decomposition, and what DeepSpeed's engine is told.

That engine itself runs in tests/processes/test_deepspeed.py.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.app.planning.memory import state_bytes
from mmrl.core.ranks import Ranks
from mmrl.runtime.tensors import mark_tables
from mmrl.training.deepspeed import DeepSpeedEngine, drive
from mmrl.training.optim import Muon, OptimizerSettings, load_whole_state, orthogonalize, whole_state
from tests.support.fakes import FakeAccelerator
from tests.support.refused import refused


def test_warm_up_then_linear_to_zero_and_cosine_is_half_way_in_the_middle():
    settings = OptimizerSettings(lr=1.0, lr_schedule="linear", warmup_steps=2)
    assert [settings.factor(step, 6) for step in range(7)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    assert OptimizerSettings(lr_schedule="cosine").factor(5, 10) == pytest.approx(0.5)


def test_nothing_to_train_and_no_rate_are_refused():
    refused("no trainable parameter", OptimizerSettings().build, [], 10)
    refused(r"OptimizerSettings\.lr is 0", OptimizerSettings, lr=0.0)


@pytest.mark.parametrize("value", [torch.ones(1), torch.ones(3, 3)])
def test_moments_of_other_shapes_are_refused(value: torch.Tensor):
    weight = torch.nn.Parameter(torch.ones(3))
    first, second = (torch.optim.AdamW([weight], lr=0.1) for _ in range(2))
    weight.grad = torch.ones(3)
    first.step()
    state = whole_state(first)
    state["state"][0]["exp_avg"] = value
    refused(r"exp_avg of weight 0 is of shape .*, and the weight of \[3\]: resume with", load_whole_state, second, state)


SHAPES = [(12, 5), (5, 12), (8, 8), (8, 8)]


def random(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(2, 12, 5), (3, 5, 12), (1, 8, 8)])
def test_it_is_the_polynomial_of_the_singular_values(shape):
    """In float64, the singular vectors stay and each singular value goes through the quintic five times."""
    matrices = random(shape, 0).double()
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    values = values / values.norm(dim=-1, keepdim=True)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    torch.testing.assert_close(orthogonalize(matrices), left * values[:, None] @ right, atol=1e-9, rtol=0)


def test_its_steps_are_those_of_torch_up_to_bfloat16():
    start = [random(shape, seed) for seed, shape in enumerate(SHAPES)]
    ours, theirs = ([weight.clone().requires_grad_() for weight in start] for _ in range(2))
    optimizers = Muon(ours, 0.1), torch.optim.Muon(theirs, 0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for seed in range(10, 14):
        for a, b, shape in zip(ours, theirs, SHAPES, strict=True):
            a.grad = random(shape, seed)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b, before in zip(ours, theirs, start, strict=True):
        assert (a - b).norm() < 0.05 * (b - before).norm()


def test_a_weight_without_gradient_stays():
    weight = random((4, 4), 0).requires_grad_()
    before = weight.detach().clone()
    Muon([weight], 0.1).step()
    assert torch.equal(weight, before)


def test_embeddings_and_all_that_is_no_matrix_follow_adamw():
    table, layer = nn.Embedding(6, 4), nn.Linear(4, 3)
    mark_tables(nn.ModuleList([table, layer]))
    weights, others = (
        [table.weight, *layer.parameters()],
        [x.detach().clone().requires_grad_() for x in (table.weight, layer.bias)],
    )
    optimizer = OptimizerSettings("muon", lr=0.1, weight_decay=0.3, betas=(0.8, 0.9)).build(weights, 10)[0]
    plain, before = torch.optim.AdamW(others, lr=0.1, weight_decay=0.3, betas=(0.8, 0.9)), layer.weight.detach().clone()
    for seed in range(3):
        for one, (weight, gradient) in enumerate([(w, random(tuple(w.shape), seed + i)) for i, w in enumerate(weights)]):
            weight.grad = gradient
            if one != 1:
                others[one // 2].grad = gradient
        optimizer.step()
        plain.step()
    assert torch.equal(table.weight, others[0]) and torch.equal(layer.bias, others[1])
    assert weights[1].grad is not None and set(optimizer.state[layer.weight]) == {"mean", "step"}
    alone = Muon([kept := before.requires_grad_()], 0.1, weight_decay=0.3)
    for seed in range(3):
        kept.grad = random((3, 4), seed + 1)
        alone.step()
    torch.testing.assert_close(kept, layer.weight)


def test_the_plan_counts_one_number_for_a_matrix_and_two_for_all_else():
    weights = [nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(5))]
    assert [state_bytes(OptimizerSettings(kind), weights) for kind in ("adamw", "muon", "sgd")] == [2 * 4 * 17, 4 * (12 + 10), 0]


def test_a_saved_state_goes_on_as_if_nothing_had_been():
    begun, later = ([nn.Parameter(random((4, 3), 0)), nn.Parameter(random((3,), 1))] for _ in range(2))
    whole, again = (OptimizerSettings("muon", lr=0.1).build(weights, 10)[0] for weights in (begun, later))

    def step(optimizer: torch.optim.Optimizer, seed: int) -> None:
        for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
            weight.grad = random(tuple(weight.shape), seed)
        optimizer.step()

    step(whole, 5)
    for weight, other in zip(begun, later, strict=True):
        other.data.copy_(weight.data)
    load_whole_state(again, whole_state(whole))
    for optimizer in (whole, again):
        step(optimizer, 6)
    assert all(torch.equal(weight, other) for weight, other in zip(begun, later, strict=True))


class Spoken:
    """An engine that notes what it is told."""

    def __init__(self, weights: Sequence[nn.Parameter], norms: Sequence[float] = (3.0, 4.0), stage: int = 3) -> None:
        self.log: list[str] = []
        self.stage = stage
        self.flat = torch.zeros(2)
        found = [torch.tensor(norm) for norm in norms]
        begun = torch.optim.SGD([self.flat])
        self.optimizer = SimpleNamespace(
            optimizer=begun, clip_grad=9.0, _get_norm_groups=lambda: found, scaled_global_norm=lambda: found[0]
        )
        self.weights = weights
        self.basic_optimizer: Any = begun

    def zero_optimization_stage(self) -> int:
        return self.stage

    @contextmanager
    def coalesce_grad_reduction(self) -> Iterator[None]:
        self.log.append("begin")
        yield
        self.log.append(f"sum {' '.join('none' if one.grad is None else f'{float(one.grad):g}' for one in self.weights)}")

    def backward(self, loss: Tensor) -> None:
        self.log.append("backward")
        loss.backward()

    def step(self) -> None:
        self.log.append("step")


def two() -> list[nn.Parameter]:
    return [nn.Parameter(torch.tensor(1.0)) for _ in range(2)]


def driven(engine: Any, weights: Sequence[nn.Parameter], world: int = 1) -> tuple[Ranks, torch.optim.Optimizer]:
    accelerator = FakeAccelerator(world, deepspeed_engine_wrapped=SimpleNamespace(engine=engine))
    optimizer = torch.optim.SGD(weights, lr=1.0)
    return drive(Ranks(accelerator), optimizer), optimizer


def test_the_passes_of_an_update_are_summed_at_once_and_only_the_engine_steps():
    weights = two()
    engine = Spoken(weights, stage=2)
    ranks, optimizer = driven(engine, weights, world=2)
    for last in (False, True):
        ranks.backward(weights[0] * 3.0, last=last)
    ranks.step(optimizer)
    # twice 3, times two processes whose gradients are averaged; the weight without a part in the loss takes part in the sum
    assert engine.log == ["begin", "backward", "backward", "sum 12 0", "step"]
    assert weights[0].item() == 1.0
    ranks.backward(weights[0] * 1.0, last=True)
    assert engine.log[5:7] == ["begin", "backward"]


def test_the_optimizer_takes_the_place_of_the_one_before():
    weights = two()
    engine = Spoken(weights)
    _, optimizer = driven(engine, weights)
    assert engine.optimizer.optimizer is engine.basic_optimizer is optimizer
    assert optimizer.param_groups[0]["params"][0] is engine.flat and optimizer.param_groups[0]["lr"] == 1.0


@pytest.mark.parametrize(
    ("stage", "norms", "expected"),
    [(3, (3.0, 4.0), 5.0), (2, (3.0, 4.0), 3.0), (3, (3.0, -1.0), math.nan), (2, (-1.0,), math.nan)],
)
def test_the_norm_is_known_before_the_step(stage: int, norms: tuple[float, ...], expected: float):
    """A norm that is not finite is -1 to the engine, which would skip the step without a word."""
    weights = two()
    engine = Spoken(weights, norms, stage)
    ranks, _ = driven(engine, weights)
    assert ranks.clip(weights, 0.5) == pytest.approx(expected, nan_ok=True)
    assert engine.optimizer.clip_grad == 0.5


def test_what_cannot_be_driven():
    weights = two()
    with pytest.raises(ValueError, match="one group of weights"):
        DeepSpeedEngine(Spoken(weights), torch.optim.SGD([{"params": [weight]} for weight in weights]))
    old: Any = SimpleNamespace(optimizer=None)
    refused("install deepspeed", DeepSpeedEngine, old, torch.optim.SGD(weights))


def test_without_an_engine_the_optimizer_steps():
    weights = two()
    optimizer = torch.optim.SGD(weights, lr=1.0)
    ranks = drive(Ranks(), optimizer)
    ranks.backward(weights[0] * 3.0, last=True)
    ranks.step(optimizer)
    assert [weight.item() for weight in weights] == [-2.0, 1.0]
