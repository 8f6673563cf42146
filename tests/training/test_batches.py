"""Minibatches, what they are divided by, rows that nothing trains, and one update whose own reading is the old one."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.core.hooks import TermHooks, with_hooks
from mmrl.core.ranks import Ranks
from mmrl.core.readings import OLD_LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Credit, Group, Reading, Rollouts, Scores
from mmrl.training.batches import Batches, leave_out
from mmrl.training.trainer import Trainer
from tests.support.each import for_each
from tests.support.fakes import FakeTextPolicy, PlayedRanks
from tests.support.presets import BY_PIXELS, TEXT, WITH_SOUND
from tests.support.rows import make_batch, rollouts
from tests.support.trainers import make_trainer

MASK = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]])
IDS = [4, 4, 4, 7, 7]
"""Row 1 is masked in a group that trains; the whole group 7 is masked."""


def batches(algorithm: Algorithm) -> Batches:
    return Batches(algorithm, Ranks(), torch.Generator().manual_seed(0))


def test_rows_and_groups_without_a_trainable_action_are_not_counted_and_nothing_counts_as_one():
    for rows, counted in ((rollouts(MASK, IDS), (2, 3, 1)), (rollouts(torch.zeros(2, 3)), (1, 1, 1))):
        counts = batches(Algorithm()).counts(rows)
        assert (counts.rollouts, counts.actions, counts.groups) == counted


def test_shares_of_the_rows_that_train_add_up_to_one():
    credit = Credit(torch.ones(5, 3), torch.ones(5, dtype=torch.bool))
    (batch,) = batches(Algorithm())(rollouts(MASK, IDS), credit, {})
    # means per rollout of rows with 2 and 1 actions, halved
    expected = torch.tensor([[0.25, 0.25, 0], [0, 0, 0], [0.5, 0, 0], [0, 0, 0], [0, 0, 0]])
    torch.testing.assert_close(batch.share, expected)


def test_a_process_without_rows_has_one_of_no_share():
    some = rollouts(torch.ones(2, 3))
    credit = Credit(torch.ones(2, 3), torch.ones(2, dtype=torch.bool))
    batch = batches(Algorithm()).batch(some, credit, {}, torch.arange(0))
    assert len(batch) == 1 and not batch.share.any() and not batch.rollouts.action_mask.any()


def test_processes_agree_on_how_often_they_read_before_they_do(monkeypatch: pytest.MonkeyPatch):
    """Sharded weights are gathered while reading: whoever asked in between would meet a process that reads."""
    trainer = make_trainer(micro_batch=4)
    collected, done = trainer.collector.collect().rollouts, list[str]()
    read = trainer.policy.read
    monkeypatch.setattr(trainer.policy, "read", lambda *asked: (done.append("read"), read(*asked))[1])
    monkeypatch.setattr(trainer.ranks, "most", lambda count: (done.append("most"), count + 1)[1])
    trainer.reader.read_rows(collected, [REF_LOGPROBS])
    assert done[0] == "most" and done.count("most") == 1
    assert done.count("read") > 3 and done[1:] == ["read"] * (len(done) - 1)


class Counting(FakeTextPolicy):
    """Counts rows that are read with a gradient."""

    rows = 0

    def read(self, trace: Any, readings: Any, mask: Tensor) -> Any:
        self.rows += len(mask) * torch.is_grad_enabled()
        return super().read(trace, readings, mask)


def half_flat(group: Group) -> list[float]:
    """Every second group's samples are all equal."""
    return [float(i) if group.id % 2 else 1.0 for i in range(len(group.samples))]


def step_of(
    algorithm: Any, reward: Any, skip: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, float], list[Tensor], int]:
    """Metrics, the gradient before the optimizer's step, and rows read with a gradient."""
    gradients: list[Tensor] = []
    with monkeypatch.context() as patch:
        if not skip:
            patch.setattr("mmrl.training.trainer.idle_rows", lambda batch, algorithm: torch.zeros(len(batch), dtype=torch.bool))
        policy = Counting()
        trainer: Trainer = make_trainer(algorithm, reward, policy=policy, micro_batch=16)
        step = trainer.ranks.step
        trainer.ranks.step = lambda optimizer: (  # type: ignore[method-assign]
            gradients.extend(weight.grad.clone() for weight in policy.parameters() if weight.grad is not None),
            step(optimizer),
        )
        return trainer.step(), gradients, policy.rows


@pytest.mark.parametrize("name", ["dr_grpo", "gspo", "gmpo", "vespo"])
def test_gradients_are_equal_and_half_of_the_rows_are_read(name, monkeypatch):
    algorithm = replace(TEXT[name], minibatches=2)
    (metrics, found, rows), (plain, expected, all_rows) = (
        step_of(algorithm, half_flat, skip, monkeypatch) for skip in (True, False)
    )
    assert rows == all_rows / 2 and metrics["policy/idle"] == 0.5 and "policy/idle" not in plain
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)
    for metric in ("loss", "policy/grad_norm", "rollout/actions", "reward/total", "rollout/length"):
        assert metrics[metric] == pytest.approx(plain[metric], rel=1e-4, abs=1e-7)


def test_without_any_advantage_one_row_makes_a_gradient_of_zeros(monkeypatch):
    metrics, gradients, rows = step_of(
        replace(TEXT["dr_grpo"], minibatches=1), lambda group: [1.0] * len(group.samples), True, monkeypatch
    )
    assert rows == 1 and metrics["policy/idle"] == 1.0 and metrics["policy/grad_norm"] == 0
    assert gradients and not any(gradient.any() for gradient in gradients)
    assert metrics["policy/ratio"] == 1, "a metric of what is left, not of nothing"


@pytest.mark.parametrize(
    "algorithm",
    [
        replace(TEXT["dr_grpo"], objective=((1.0, Clip()), (0.01, ReferenceKL())), minibatches=2),
        replace(TEXT["dro"], minibatches=2),
        replace(TEXT["kl_cov"], minibatches=2),
        PRESETS["reg_grpo"],
    ],
    ids=["kl", "dro", "kl_cov", "regression"],
)
def test_terms_that_have_more_to_say_read_every_row(algorithm, monkeypatch):
    metrics, _, rows = step_of(algorithm, half_flat, True, monkeypatch)
    assert rows == step_of(algorithm, half_flat, False, monkeypatch)[2] and "policy/idle" not in metrics


def random_reading(reading: Reading, generator: torch.Generator) -> Tensor:
    """(4, 3), or latents of two numbers each; logs of probabilities, and positive where a schedule gives it."""
    shape = (4, 3, 2) if reading.quantity in ("velocity", "mean", "sampled_mean", "target_velocity") else (4, 3)
    x = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1
    return -x if reading.quantity == "logprobs" else x


@for_each("name", sorted({*PRESETS} - {*BY_PIXELS, *WITH_SOUND}))
def test_terms_say_truly_whether_they_are_silent(name):
    """Value and gradient where no row has an advantage, and policy and old are apart."""
    for _, term in PRESETS[name].objective:
        generator = torch.Generator().manual_seed(0)
        readings = {reading: random_reading(reading, generator) for reading in term.reads}
        live = {reading: x.requires_grad_(reading.model == "policy") for reading, x in readings.items()}
        batch = make_batch(torch.ones(4, 3, dtype=torch.bool), torch.zeros(4, 3, dtype=torch.float64), {}, [0, 0, 1, 1])
        values, _ = term(live, batch)
        moving = [x for x in live.values() if x.requires_grad]
        slopes = torch.autograd.grad(values.sum(), moving, allow_unused=True) if values.requires_grad else ()
        silent = not bool(values.any()) and not any(slope is not None and bool(slope.any()) for slope in slopes)
        says = term.credited and with_hooks(term, TermHooks).silent_without_advantage
        assert silent or not says, f"{type(term).__name__} says it is silent, and is not"
        assert says or not isinstance(term, Clip), "most presets would read every row"


IDLE, TRAINS = (False, True), (True, False)


@pytest.mark.parametrize(
    ("everyone", "rank", "shown"),
    [([IDLE, IDLE], 0, True), ([IDLE, IDLE], 1, False), ([IDLE, TRAINS], 0, False), ([TRAINS, IDLE], 1, False)],
)
def test_a_row_that_only_stands_in_counts_on_one_process_and_only_where_none_trains(everyone, rank, shown):
    batch = make_batch(torch.ones(4, 3, dtype=torch.bool), torch.zeros(4, 3), {})
    ranks = PlayedRanks(lambda x: everyone if x == everyone[rank] else pytest.fail(f"this one says {x}"), rank)
    left = leave_out(batch, torch.ones(4, dtype=torch.bool), ranks)
    assert len(left) == 1 and bool(left.share.any()) == shown


ONCE = replace(PRESETS["dr_grpo"], minibatches=1)


class Rough(FakeTextPolicy):
    """Notes log-probabilities that are off by what bfloat16 rounds, and counts readings without a gradient."""

    exact_sampler: bool = True
    frozen_reads = 0

    def rollout(self, requests: Any, sampling: Any = None) -> Rollouts:
        rollouts = super().rollout(requests, sampling)
        noise = 0.02 * torch.randn(rollouts.action_mask.shape, generator=torch.Generator().manual_seed(0))
        return replace(rollouts, recorded={reading: x + noise for reading, x in rollouts.recorded.items()})

    def read(self, trace: Any, readings: Any, mask: Tensor) -> Any:
        self.frozen_reads += not torch.is_grad_enabled()
        return super().read(trace, readings, mask)


def rough(*shadows: str, exact: bool = True) -> Rough:
    policy = Rough(shadows=frozenset(shadows))
    policy.exact_sampler = exact
    return policy


def second_step(algorithm: Algorithm, policy: Any = None, **more: Any) -> tuple[dict[str, float], int]:
    """The metrics of a second step, and its readings without a gradient; the first step's gate reads everything."""
    policy = policy or rough()
    trainer = make_trainer(algorithm, policy=policy, ratio_bound=1.0, mean_ratio_bound=1.0, **more)
    trainer.step()
    before = policy.frozen_reads
    return trainer.step(), policy.frozen_reads - before


@pytest.mark.parametrize("old", ["recorded", "reread"])
def test_ratios_are_one_and_nothing_is_read(old):
    metrics, reads = second_step(replace(ONCE, old=old))
    assert reads == 0 and metrics["policy/ratio"] == 1 and metrics["policy/kl_old"] == metrics["policy/clip_frac"] == 0
    assert 0.01 < metrics["rollout/log_ratio"] < 0.03, "how rough the record was is seen all the same"


def test_the_gradient_is_that_of_a_reading_before_the_update(monkeypatch: pytest.MonkeyPatch):
    live, read = rough(), rough()
    second_step(replace(ONCE, old="reread"), live)
    monkeypatch.setattr(Algorithm, "old_can_be_live", False)
    assert second_step(replace(ONCE, old="reread"), read)[1] == 1
    torch.testing.assert_close([*live.parameters()], [*read.parameters()], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("algorithm", "policy", "reads", "moves"),
    [
        (replace(ONCE, minibatches=2), rough(), 0, True),
        (ONCE, rough(exact=False), 1, True),  # the gate looks again
        (ONCE, rough("ref"), 0, True),
        (replace(ONCE, old="reread", importance=(RolloutCorrection(),)), rough(), 1, False),
    ],
    ids=["two updates", "an engine's record", "other weights may have sampled", "a weight asks before"],
)
def test_the_record_or_a_reading_is_kept_where_it_says_more(algorithm, policy, reads, moves):
    metrics, found = second_step(algorithm, policy)
    assert found == reads and (metrics["policy/ratio"] != 1) == moves


def test_rows_without_a_record_need_no_reading_of_their_own():
    class Injected(Rough):
        def rollout(self, requests: Any, sampling: Any = None) -> Rollouts:
            rollouts = super().rollout(requests, sampling)
            noted = rollouts.recorded[ROLLOUT_LOGPROBS].clone()
            noted[0] = torch.nan
            return replace(rollouts, recorded={ROLLOUT_LOGPROBS: noted})

    metrics, reads = second_step(ONCE, Injected(shadows=frozenset()))
    assert reads == 0 and metrics["policy/ratio"] == 1


@dataclass(frozen=True)
class Looking:
    """An advantage that looks at old log-probabilities."""

    reads: tuple[Reading, ...] = (OLD_LOGPROBS,)

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        return GroupNorm()(scores, rollouts)


def test_old_ones_that_somebody_wants_before_the_update_are_read_before_it():
    algorithm = replace(ONCE, objective=((1.0, Clip()),))
    assert OLD_LOGPROBS in algorithm.frozen_reads and algorithm.old_can_be_live
    assert not replace(algorithm, epochs=2).old_can_be_live
    assert not replace(algorithm, advantage=Looking()).old_can_be_live
    assert second_step(replace(algorithm, advantage=Looking(), old="reread"))[1] == 1
