"""The gate before the first update: what trips it, its own bounds, which hypothesis it names; all processes decide together."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets import PRESETS
from mmrl.core.protocols import Hypothesis
from mmrl.core.ranks import Ranks
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Batch, Reading, Request, Rollouts
from mmrl.policies.text.check.diagnose import unit_of
from mmrl.training.resources.micro_batch import MicroBatches
from mmrl.training.settings import TrainSettings
from mmrl.training.stopping import TrainingStoppedError
from mmrl.training.watch import ratio_gate
from mmrl.training.watch.ratio_gate import ENGINE_LOOKS, MOST_ROUNDINGS, NOISES, Bounds, Gap, RatioGate
from tests.support.fakes import FakeTextPolicy, PlayedRanks, prompts
from tests.support.refused import refused
from tests.support.trainers import make_trainer

SETTINGS = TrainSettings(ratio_bound=1e-5, mean_ratio_bound=1.0)


class Examined(FakeTextPolicy):
    diagnostics: Any = None
    rounding: Any = None
    exact_sampler: bool = True


def rows(policy: Any, count: int = 4) -> Rollouts:
    """Without stops, so that every row has four actions."""
    rollouts = policy.rollout([Request(prompt, 2, i) for i, prompt in enumerate(prompts()[: count // 2])])
    return replace(rollouts, action_mask=torch.ones_like(rollouts.action_mask))


def gate_of(hypotheses: Callable[[Rollouts], list[Hypothesis]], ranks: Ranks | None = None) -> tuple[RatioGate, Rollouts]:
    policy = Examined()
    rollouts = rows(policy)
    policy.diagnostics = SimpleNamespace(hypotheses=lambda _, found=hypotheses(rollouts): iter(found))
    return RatioGate(policy, PRESETS["dr_grpo"], SETTINGS, ranks or Ranks()), rollouts


def guess(cause: str, values: Tensor | Exception | None, **more: Any) -> Hypothesis:
    def read() -> Tensor:
        if isinstance(values, Exception):
            raise values
        assert values is not None
        return values

    return Hypothesis(cause, f"under {cause}", f"Mend {cause}.", None if values is None else read, **more)


def off(rollouts: Rollouts, by: float) -> Tensor:
    return rollouts.recorded[ROLLOUT_LOGPROBS] + by


def verdict(hypotheses: Callable[[Rollouts], list[Hypothesis]], by: float = 0.5) -> str:
    gate, rollouts = gate_of(hypotheses)
    with pytest.raises(TrainingStoppedError) as caught:
        gate.check(rollouts, rollouts.recorded[ROLLOUT_LOGPROBS], off(rollouts, by))
    return str(caught.value)


def test_equal_numbers_pass():
    gate, rollouts = gate_of(lambda rollouts: [])
    assert gate.check(rollouts, rollouts.recorded[ROLLOUT_LOGPROBS], off(rollouts, 5e-6)) == pytest.approx(5e-6, rel=0.2)


def test_the_average_gap_is_over_the_actions_compared():
    mask, nothing = torch.tensor([[True, True], [True, False]]), torch.full((2, 2), math.nan)
    evaluated = torch.tensor([[0.3, -0.5], [0.1, 9.0]])
    gap = Gap.between(mask, torch.zeros(2, 2), evaluated)
    assert (gap.worst, gap.average) == pytest.approx((0.5, 0.3))
    one = Gap.between(mask, torch.tensor([[math.nan, 0.0], [math.nan, 0.0]]), evaluated)
    assert (one.worst, one.average) == pytest.approx((0.5, 0.5))
    none = Gap.between(mask, nothing, evaluated)
    assert (none.worst, none.average) == (0.0, 0.0)


def test_the_first_change_that_brings_the_samplers_numbers_is_named():
    message = verdict(
        lambda rollouts: [
            guess("nothing", off(rollouts, 0.5), control=True),
            guess("half", off(rollouts, 0.25)),
            guess("broken", RuntimeError("no such kernel")),
            guess("right", off(rollouts, 0.0)),
            guess("also right", off(rollouts, 0.0)),
        ]
    )
    assert "|log ratio| is 5.00e-01 at most" in message
    again = "evaluated again under right, the 4 worst rows differ by 0.0e+00 at most instead of 5.0e-01"
    assert f"Likely cause: right ({again})" in message and message.endswith("Mend right.")


def test_what_was_tried_in_vain_is_listed():
    message = verdict(lambda rollouts: [guess(name, off(rollouts, by)) for name, by in (("a", 0.4), ("b", -0.5), ("a", 0.3))])
    assert message.endswith("No single cause explains it; tried: exchanged rows, a, b. Training on would be wrong")


def unknown(values: Tensor, columns: int) -> Tensor:
    """The values without those of the first columns."""
    return torch.where(torch.arange(values.shape[1]) < columns, math.nan, values)


@pytest.mark.parametrize(
    ("guessed", "named"),
    [
        *((lambda rows, by=by: [guess("it", off(rows, 0.5 / by))], by == 21) for by in (19, 21)),
        (lambda rows: [guess("control", off(rows, 0.1), control=True), guess("it", off(rows, 0.02))], False),
        *((lambda rows, by=by: [guess("it", off(rows, 0.5 + by), must_equal="reading")], by == 0.1) for by in (1e-6, 0.04, 0.1)),
        *((lambda rows, n=n: [guess("it", unknown(off(rows, 0.0), n))], n == 2) for n in (2, 3)),
    ],
    ids=[
        *("a 19th of the difference is left", "a 21st of the difference is left", "no better than the control"),
        *("moves by rounding", "moves a little", "moves though it must not", "explains half", "explains less than half"),
    ],
)
def test_a_change_is_named_where_it_explains_enough(guessed: Callable[[Rollouts], list[Hypothesis]], named: bool):
    message = verdict(guessed)
    assert ("Likely cause: it (" in message, "No single cause" in message) == (named, not named)


def test_a_fact_is_named_when_its_turn_comes():
    message = verdict(lambda rollouts: [guess("a", off(rollouts, 0.5)), guess("fact", None)])
    assert message.endswith("Likely cause: fact (under fact). Mend fact.")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["evaluated", "noted"])
def test_numbers_that_are_not_finite_stop_the_run(side, value):
    gate, rollouts = gate_of(lambda rollouts: [guess("finite", off(rollouts, 0.1))])
    noted, evaluated = rollouts.recorded[ROLLOUT_LOGPROBS].clone(), off(rollouts, 0.0)
    (evaluated if side == "evaluated" else noted)[1, 2] = value
    if side == "noted" and math.isnan(value):
        assert gate.check(rollouts, noted, evaluated) == 0, "nobody sampled it"
        return
    place = r"action 2 of prompt '0' \(sample 1\)"
    with pytest.raises(TrainingStoppedError, match=place + r".*tried: exchanged rows, finite\. Look for weights that diverged"):
        gate.check(rollouts, noted, evaluated)


def test_a_policy_without_an_examiner_is_stopped_too():
    policy = FakeTextPolicy()
    rollouts = rows(policy)
    gate = RatioGate(policy, PRESETS["dr_grpo"], SETTINGS, Ranks())
    with pytest.raises(TrainingStoppedError, match="cannot look for the cause itself"):
        gate.check(rollouts, rollouts.recorded[ROLLOUT_LOGPROBS], off(rollouts, 0.5))


class WithGradient(FakeTextPolicy):
    """Differs where gradients are on."""

    amount: float = 0.0

    def read(self, trace: Any, readings: Any, mask: Tensor) -> dict[Reading, Tensor]:
        values = super().read(trace, readings, mask)
        return {reading: x + self.amount if torch.is_grad_enabled() else x for reading, x in values.items()}


def first_step(algorithm: Any, amount: float, **bounds: Any) -> Any:
    policy = WithGradient()
    policy.amount = amount
    trainer = make_trainer(algorithm, policy=policy, **bounds)
    trainer.step()
    return trainer


@pytest.mark.parametrize("turns", [1, 2])
def test_the_forward_with_a_gradient_is_checked_whichever_the_turn_of_a_process(turns: int, monkeypatch: pytest.MonkeyPatch):
    cut = MicroBatches.cut

    def behind(sizes: MicroBatches, batch: Batch) -> list[Batch]:
        own = cut(sizes, batch)
        nothing = torch.zeros_like(own[0].rollouts.action_mask)
        idle = replace(own[0], share=0 * own[0].share, rollouts=replace(own[0].rollouts, action_mask=nothing))
        return [idle] * (turns - 1) + own

    monkeypatch.setattr(MicroBatches, "cut", behind)
    monkeypatch.setattr(MicroBatches, "turns", turns)
    with pytest.raises(TrainingStoppedError, match="in the first forward with a gradient the log-probability of action"):
        first_step(PRESETS["dr_grpo"], 1e-3)
    assert not first_step(PRESETS["dr_grpo"], 1e-6).reader.gate.closed


NARROW = replace(PRESETS["dr_grpo"], objective=((1.0, Clip(low=0.01, high=0.02)),))
OF_ROLLOUTS = r"log ratio of a rollout is 4.*clip range of rollouts \(3.0e-05\)"


@pytest.mark.parametrize(
    ("algorithm", "amount", "said"),
    [
        (NARROW, 2e-3, r"mean_ratio_bound = 0\.001"),
        (NARROW, 5e-4, ""),
        (PRESETS["gspo"], 4e-5, OF_ROLLOUTS),
        (PRESETS["gspo"], 2e-5, ""),
    ],
)
def test_means_and_ratios_of_rollouts_stay_below_a_tenth_of_their_clip_range(algorithm: Algorithm, amount: float, said: str):
    with pytest.raises(TrainingStoppedError, match=said) if said else nullcontext():
        first_step(algorithm, amount, ratio_bound=1.0)


def test_the_ratio_of_a_rollout_is_the_mean_over_its_own_actions():
    policy = Examined()
    rollouts = rows(policy)
    short = replace(rollouts, action_mask=torch.tensor([[True, False, False, False]] * len(rollouts)))
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    gate = RatioGate(policy, PRESETS["gspo"], SETTINGS, Ranks())
    # one action each, off by 0.1: the mean is 0.1 and not 0.1 / 4
    with pytest.raises(TrainingStoppedError, match=r"log ratio of a rollout is 1\.00e-01"):
        gate._check_rollouts(short, noted, noted + 0.1, 0.05)
    unknown = noted.clone()
    unknown[:, 0] = math.nan
    gate._check_rollouts(short, unknown, noted + 0.1, 0.05)


def test_a_resumed_run_is_checked_again():
    trainer = make_trainer(PRESETS["dr_grpo"])
    trainer.step()
    policy = WithGradient()
    resumed = make_trainer(PRESETS["dr_grpo"], policy=policy)
    resumed.load_state_dict(trainer.state_dict())
    policy.amount = 1e-3
    refused("in the first forward with a gradient", resumed.step, error=TrainingStoppedError)


class Meeting:
    """Where threads that play processes exchange objects."""

    def __init__(self, world: int) -> None:
        self.barrier, self.held = threading.Barrier(world, timeout=20), [None] * world

    def exchange(self, rank: int, x: Any) -> list[Any]:
        self.held[rank] = x
        self.barrier.wait()
        found = list(self.held)
        self.barrier.wait()
        return found


def test_all_processes_stop_together_and_read_equally_often():
    """Only the second one has a fault, and its cause is the first of two hypotheses."""
    meeting, said, reads = Meeting(2), ["", ""], [0, 0]

    def run(rank: int) -> None:
        def hypotheses(rollouts: Rollouts) -> list[Hypothesis]:
            def read(by: float) -> Tensor:
                reads[rank] += 1
                return off(rollouts, by)

            return [Hypothesis(f"{name}{rank}", "so", "Mend it", lambda by=by: read(by)) for name, by in (("a", 0.0), ("b", 0.3))]

        gate, rollouts = gate_of(hypotheses, PlayedRanks(partial(meeting.exchange, rank), rank))
        try:
            gate.check(rollouts, rollouts.recorded[ROLLOUT_LOGPROBS], off(rollouts, 0.5 * rank))
        except TrainingStoppedError as error:
            said[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said[0] == said[1]
    assert "Likely cause: a1 (" in said[0]
    assert "5.00e-01 at most and 2.50e-01 on average" in said[0], "the mean is over both"
    assert reads == [2, 2]


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


def rounded(rounding: Any, exact: bool = True, **bounds: Any) -> tuple[RatioGate, Rollouts]:
    policy = Examined()
    policy.rounding, policy.exact_sampler = rounding, exact
    return RatioGate(policy, PRESETS["dr_grpo"], TrainSettings(**bounds), Ranks()), rows(policy, 8)


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
    assert rounded(None)[0]._bounds(math.nan) == Bounds(2e-5, 0.02)
    gate, rollouts = rounded(Rounding(unit=2.0**-24, is_coarse=False, bound=1e-6))
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
    gate, rollouts = rounded(rounding := Rounding(noise))
    assert passes(gate, rollouts, gap) == goes_on
    assert rounding.asked == (gap > STEP / 2)
    assert gate.bounds is not None and gate.bounds.worst == pytest.approx(min(1.0, 20 * gate.bounds.mean))


def test_a_number_in_the_config_always_wins_and_the_message_says_what_was_measured():
    gate, rollouts = rounded(Rounding(), ratio_bound=9.0, mean_ratio_bound=0.5)
    assert passes(gate, rollouts, 0.4) and not passes(gate, rollouts, 0.6)
    assert gate.policy.rounding.asked == 0, "nothing is measured that nobody asks for"  # type: ignore[attr-defined]
    assert not passes(*rounded(Rounding(), mean_ratio_bound=1e-4), 2e-4)
    gate, rollouts = rounded(Rounding(STEP / 4))
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    with pytest.raises(TrainingStoppedError, match=r"mean_ratio_bound = 0\.0176 \(equal readings differ by 5\.9e-03 on aver"):
        gate.check(rollouts, noted, noted + 0.03)


def first(rounding: Any, by: float, old: bool, **bounds: Any) -> None:
    gate, rollouts = rounded(rounding, **bounds)
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    ones = torch.ones_like(noted)
    gate.first(Batch(rollouts, ones, ones, ones, {OLD_LOGPROBS: noted} if old else {}), {LOGPROBS: noted + by})


def test_a_fifth_of_the_clip_range_bounds_coarse_ratios_unless_they_are_one():
    noisy = Rounding(2 * STEP)
    first(noisy, 0.039, old=True)
    refused(r"mean_ratio_bound = 0\.04 ", first, noisy, 0.041, error=TrainingStoppedError, old=True)
    first(noisy, 0.041, old=False)
    first(noisy, 0.041, old=True, mean_ratio_bound=0.05)


def test_an_engine_has_bounds_of_its_own():
    gate, rollouts = rounded(Rounding(unit=2.0**-24, is_coarse=False), exact=False)
    assert passes(gate, rollouts, 4e-5) and not passes(gate, rollouts, 6e-5)
    gate, rollouts = rounded(Rounding(depth=2), exact=False)
    assert passes(gate, rollouts, 0.019) and not passes(gate, rollouts, 0.021) and gate.bounds == Bounds(0.4, 0.02)
    assert gate.policy.rounding.asked == 0, "its own readings say nothing of an engine's"  # type: ignore[attr-defined]


class StaleEngine(FakeTextPolicy):
    """An engine that notes log-probabilities from caches of before the last update, from some answer on."""

    def __init__(self, stale_from: int, exact: bool = False) -> None:
        super().__init__()
        self.exact_sampler, self.stale_from, self.answers = exact, stale_from, 0

    def rollout(self, requests: Any, sampling: Any = None) -> Rollouts:
        self.answers += 1
        rollouts = super().rollout(requests, sampling)
        if self.answers < self.stale_from:
            return rollouts
        recorded: dict[Reading, Tensor] = {reading: x - 1e-3 for reading, x in rollouts.recorded.items()}
        return replace(rollouts, recorded=recorded)


@pytest.mark.parametrize(("step", "found"), [(1, True), (ENGINE_LOOKS, True), (ENGINE_LOOKS + 1, False)])
def test_an_engine_is_looked_at_again_after_the_first_updates(step, found):
    trainer = make_trainer(PRESETS["dr_grpo"], policy=StaleEngine(step), steps=9)
    gaps = [trainer.step()["rollout/log_ratio"] for _ in range(step - 1)]
    assert max(gaps, default=0.0) < 1e-5
    if found:
        refused(r"update prompt|update the log-probability", trainer.step, error=TrainingStoppedError)
    else:
        assert trainer.step()["rollout/log_ratio"] == pytest.approx(1e-3, rel=1e-2), "the metric shows it, and health"


def test_an_exact_sampler_is_compared_once():
    trainer = make_trainer(PRESETS["dr_grpo"], policy=StaleEngine(exact=True, stale_from=2), steps=9)
    trainer.step()
    assert not trainer.reader.gate.looks
    trainer.step()


def test_two_processes_take_the_larger_noise(monkeypatch: pytest.MonkeyPatch):
    gate, rollouts = rounded(Rounding(STEP))
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
