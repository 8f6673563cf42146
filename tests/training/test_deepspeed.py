"""What mmrl tells DeepSpeed's engine, and in which order; the engine itself runs in tests/processes/test_deepspeed.py."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.core.ranks import Ranks
from mmrl.training.deepspeed import DeepSpeedEngine, drive
from tests.support.fakes import FakeAccelerator


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
        self.log.append(
            "sum " + " ".join("none" if weight.grad is None else f"{float(weight.grad):g}" for weight in self.weights)
        )

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
    with pytest.raises(ValueError, match="install deepspeed"):
        DeepSpeedEngine(old, torch.optim.SGD(weights))


def test_without_an_engine_the_optimizer_steps():
    weights = two()
    optimizer = torch.optim.SGD(weights, lr=1.0)
    ranks = drive(Ranks(), optimizer)
    ranks.backward(weights[0] * 3.0, last=True)
    ranks.step(optimizer)
    assert [weight.item() for weight in weights] == [-2.0, 1.0]
