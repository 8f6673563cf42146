"""The gate's own bounds: of float32, of coarser numbers by depth and by what rounding was seen to make, and of an engine."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.presets import PRESETS
from mmrl.core.ranks import Ranks
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Batch, Reading, Request, Rollouts
from mmrl.policies.text.check.diagnose import unit_of
from mmrl.training.settings import TrainSettings
from mmrl.training.stopping import TrainingStoppedError
from mmrl.training.watch import ratio_gate
from mmrl.training.watch.ratio_gate import ENGINE_LOOKS, MOST_ROUNDINGS, NOISES, Bounds, RatioGate
from tests.support.fakes import FakeTextPolicy, prompts
from tests.support.trainers import make_trainer

HALF, DEPTH = 2.0**-8, 36
STEP = HALF * math.sqrt(DEPTH)
"""0.0234: about the mean |log ratio| between decoding and reading of a 3B model with 36 layers."""


@dataclass
class Rounding:
    """Readings that lie `noise` apart; counts how often they were asked for."""

    noise: float = 0.0
    unit: float = HALF
    bound: float = 2e-5
    depth: int = DEPTH
    is_coarse: bool = True
    asked: int = field(default=0, init=False)

    def readings(self, rollouts: Rollouts) -> Iterator[Tensor]:
        self.asked += 1
        noted = rollouts.recorded[ROLLOUT_LOGPROBS]
        yield noted
        yield noted + self.noise


class Half(FakeTextPolicy):
    """A policy that computes in bfloat16, or says so."""

    rounding: Any = None
    exact_sampler: bool = True


def gate_of(rounding: Any, exact: bool = True, **bounds: Any) -> tuple[RatioGate, Rollouts]:
    policy: Any = FakeTextPolicy() if rounding is None and exact else Half()
    if rounding is not None:
        policy.rounding = rounding
    policy.exact_sampler = exact
    rollouts = policy.rollout([Request(prompt, 2, i) for i, prompt in enumerate(prompts()[:4])])
    rollouts = replace(rollouts, action_mask=torch.ones_like(rollouts.action_mask))
    return RatioGate(policy, PRESETS["dr_grpo"], TrainSettings(**bounds), Ranks()), rollouts


def passes(gate: RatioGate, rollouts: Rollouts, by: float) -> bool:
    """Every second action is off by 2 * `by`."""
    off = torch.zeros_like(rollouts.recorded[ROLLOUT_LOGPROBS])
    off[:, ::2] = 2 * by
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    try:
        gate.check(rollouts, noted, noted + off)
    except TrainingStoppedError:
        return False
    return True


def test_float32_stays_tight():
    assert gate_of(None)[0]._bounds(math.nan) == Bounds(2e-5, 0.02)
    gate, rollouts = gate_of(Rounding(unit=2.0**-24, is_coarse=False, bound=1e-6))
    assert gate._bounds(math.nan) == Bounds(1e-6, 0.02) and gate.policy.rounding.asked == 0  # type: ignore[attr-defined]
    assert passes(gate, rollouts, 1e-7) and not passes(gate, rollouts, 1e-6)


@pytest.mark.parametrize(
    ("noise", "gap", "goes_on"),
    [
        (0.0, STEP / 2.1, True),  # below a half nothing is measured
        (0.0, STEP / 1.9, False),
        (STEP / 3, STEP / 1.1, True),
        (STEP / 3, NOISES * STEP / 3 + 1e-3, False),
        (STEP, 1.02 * STEP, True),  # the shipped 3B config: 2.4e-2 where equal readings differ by 2.0e-2
        (10 * STEP, (MOST_ROUNDINGS + 0.1) * STEP, False),  # dropout in both readings widens nothing
    ],
)
def test_coarse_numbers_may_differ_by_a_few_times_what_equal_readings_do(noise, gap, goes_on):
    gate, rollouts = gate_of(rounding := Rounding(noise))
    assert passes(gate, rollouts, gap) == goes_on
    assert rounding.asked == (gap > STEP / 2)
    assert gate.bounds is not None and gate.bounds.worst == pytest.approx(min(1.0, 20 * gate.bounds.mean))


def test_a_number_in_the_config_always_wins():
    gate, rollouts = gate_of(Rounding(0.0), ratio_bound=9.0, mean_ratio_bound=0.5)
    assert passes(gate, rollouts, 0.4) and not passes(gate, rollouts, 0.6)
    assert gate.policy.rounding.asked == 0, "nothing is measured that nobody asks for"  # type: ignore[attr-defined]
    gate, rollouts = gate_of(Rounding(0.0), mean_ratio_bound=1e-4)
    assert not passes(gate, rollouts, 2e-4)


def test_the_message_says_the_bounds_and_what_was_measured():
    gate, rollouts = gate_of(Rounding(STEP / 4))
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    with pytest.raises(TrainingStoppedError, match=r"mean_ratio_bound = 0\.0176 \(equal readings differ by 5\.9e-03 on aver"):
        gate.check(rollouts, noted, noted + 0.03)


def first(rounding: Any, by: float, old: bool, **bounds: Any) -> None:
    gate, rollouts = gate_of(rounding, **bounds)
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    ones = torch.ones_like(noted)
    gate.first(Batch(rollouts, ones, ones, ones, {OLD_LOGPROBS: noted} if old else {}), {LOGPROBS: noted + by})


def test_a_fifth_of_the_clip_range_bounds_coarse_ratios_unless_they_are_one():
    noisy = Rounding(2 * STEP)
    first(noisy, 0.039, old=True)
    with pytest.raises(TrainingStoppedError, match=r"mean_ratio_bound = 0\.04 "):
        first(noisy, 0.041, old=True)
    first(noisy, 0.041, old=False)
    first(noisy, 0.041, old=True, mean_ratio_bound=0.05)


def test_an_engine_has_bounds_of_its_own():
    gate, rollouts = gate_of(Rounding(unit=2.0**-24, is_coarse=False), exact=False)
    assert passes(gate, rollouts, 4e-5) and not passes(gate, rollouts, 6e-5)
    gate, rollouts = gate_of(Rounding(depth=2), exact=False)
    assert passes(gate, rollouts, 0.019) and not passes(gate, rollouts, 0.021) and gate.bounds == Bounds(0.4, 0.02)
    assert gate.policy.rounding.asked == 0, "its own readings say nothing of an engine's"  # type: ignore[attr-defined]


class StaleEngine(FakeTextPolicy):
    """An engine that notes log-probabilities from caches of before the last update, from its third answer on."""

    exact_sampler: bool = False
    stale_from = 3
    answers = 0

    def rollout(self, requests: Any, sampling: Any = None) -> Rollouts:
        self.answers += 1
        rollouts = super().rollout(requests, sampling)
        if self.answers < self.stale_from:
            return rollouts
        recorded: dict[Reading, Tensor] = {reading: x - 1e-3 for reading, x in rollouts.recorded.items()}
        return replace(rollouts, recorded=recorded)


@pytest.mark.parametrize(("step", "found"), [(1, True), (ENGINE_LOOKS, True), (ENGINE_LOOKS + 1, False)])
def test_an_engine_is_looked_at_again_after_the_first_updates(step, found):
    policy = StaleEngine()
    policy.stale_from = step
    trainer = make_trainer(PRESETS["dr_grpo"], policy=policy, steps=9)
    gaps = [trainer.step()["rollout/log_ratio"] for _ in range(step - 1)]
    assert max(gaps, default=0.0) < 1e-5
    if found:
        with pytest.raises(TrainingStoppedError, match=r"update prompt|update the log-probability"):
            trainer.step()
    else:
        assert trainer.step()["rollout/log_ratio"] == pytest.approx(1e-3, rel=1e-2), "the metric shows it, and health"


def test_an_exact_sampler_is_compared_once():
    policy = StaleEngine()
    policy.exact_sampler, policy.stale_from = True, 2
    trainer = make_trainer(PRESETS["dr_grpo"], policy=policy, steps=9)
    trainer.step()
    assert not trainer.reader.gate.looks
    trainer.step()


def test_two_processes_take_the_larger_noise(monkeypatch: pytest.MonkeyPatch):
    gate, rollouts = gate_of(Rounding(STEP))
    monkeypatch.setattr(gate.ranks, "sum", lambda values: [3 * values[0], 2 * values[1]])
    assert gate._measure(rollouts) == pytest.approx(1.5 * STEP, rel=1e-4)
    monkeypatch.setattr(gate.ranks, "most", lambda value: 0)
    assert math.isnan(gate._measure(rollouts)), "a process without rows measures nothing"
    assert gate._bounds(math.nan).mean == pytest.approx(ratio_gate.FEWEST_ROUNDINGS * STEP)


def test_the_unit_of_rounding(monkeypatch: pytest.MonkeyPatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert unit_of(torch.bfloat16, cuda) == 2.0**-8 and unit_of(torch.float32, cuda) == unit_of(torch.float32, cpu) == 2.0**-24
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert unit_of(torch.float32, cuda) == 2.0**-11 and unit_of(torch.float32, cpu) == 2.0**-24
