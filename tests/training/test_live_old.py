"""One update per step: its own reading is the old one, exactly, and nothing is read for it."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.core.readings import OLD_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Credit, Reading, Rollouts, Scores
from tests.support.fakes import FakeTextPolicy
from tests.support.trainers import make_trainer

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


def rough() -> Rough:
    return Rough(shadows=frozenset())


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
    for a, b in zip(live.parameters(), read.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def engine() -> Rough:
    policy = rough()
    policy.exact_sampler = False
    return policy


def with_reference() -> Rough:
    return Rough(shadows=frozenset({"ref"}))


@pytest.mark.parametrize(
    ("algorithm", "policy", "reads"),
    [
        (replace(ONCE, minibatches=2), rough, 0),
        (ONCE, engine, 0),
        (ONCE, with_reference, 0),
        (replace(ONCE, old="reread", importance=(RolloutCorrection(),)), rough, 1),
    ],
    ids=["two updates", "an engine's record", "other weights may have sampled", "a weight asks before"],
)
def test_the_record_or_a_reading_is_kept_where_it_says_more(algorithm, policy, reads):
    metrics, found = second_step(algorithm, policy())
    if policy is engine:
        assert metrics["policy/ratio"] != 1 and found == 1, "the gate looks again"
    else:
        assert found == reads and (metrics["policy/ratio"] != 1 or reads)


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
