"""The loop: what it trains and refuses, and what a run is asked for between two steps."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmrl.algorithms.masks.truncated import DropTruncated
from mmrl.algorithms.planners.base import DynamicSampling
from mmrl.core.readings import OLD_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Group
from mmrl.training.callbacks import Callback
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.evaluate import EvaluationSettings, Evaluator
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.stopping import TrainingStoppedError
from mmrl.training.trainer import Records
from tests.support.fakes import FakeTextPolicy, prompts, right_letter
from tests.support.presets import TEXT as PRESETS
from tests.support.trainers import make_trainer, weights


def test_grpo_learns():
    trainer = make_trainer(steps=60, optimizer=OptimizerSettings(lr=2e-2))
    rewards = [trainer.step()["reward/total"] for _ in range(60)]
    assert sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10 + 0.3


@pytest.mark.parametrize("micro_batch", [1, 9, 40, 10_000])
def test_update_does_not_depend_on_the_budget(micro_batch):
    trainer, whole = make_trainer(micro_batch=micro_batch), make_trainer(micro_batch=10_000)
    for _ in range(3):
        trainer.step()
        whole.step()
    torch.testing.assert_close(weights(trainer), weights(whole), atol=2e-5, rtol=1e-4)


def test_epochs_and_minibatches_deal_every_row_once_per_pass():
    algorithm = replace(PRESETS["grpo"], epochs=2, minibatches=3)
    trainer = make_trainer(algorithm)
    seen: list[tuple[int, int]] = []
    update = trainer.update
    trainer.update = lambda batch: (
        seen.extend(zip(batch.rollouts.group_ids.tolist(), batch.rollouts.sample_ids.tolist(), strict=True)),
        update(batch),
    )[1]
    trainer.step()
    assert len(seen) == 2 * 4 * 8
    assert sorted(seen[:32]) == sorted(seen[32:]) == sorted(set(seen))
    assert seen[:32] != seen[32:]


def wrong_at(place, off):
    """A policy whose recorded log-probabilities are off at a place."""
    policy = FakeTextPolicy()
    rollout = policy.rollout

    def wrong(requests, sampling=None):
        rollouts = rollout(requests, sampling)
        rollouts.recorded[ROLLOUT_LOGPROBS][place] += off
        return rollouts

    policy.rollout = wrong
    return policy


@pytest.mark.parametrize("bounds", [{}, {"ratio_bound": 1.0, "mean_ratio_bound": 1e-6}], ids=["largest", "mean"])
def test_ratio_gate_stops_before_the_first_update(bounds):
    trainer = make_trainer(policy=wrong_at((3, 0), 1e-3), **bounds)
    before = weights(trainer)
    with pytest.raises(TrainingStoppedError, match=r"action 0 of prompt .*beyond ratio_bound"):
        trainer.step()
    assert torch.equal(before, weights(trainer))


def test_rows_beyond_the_first_micro_batch_are_checked():
    trainer = make_trainer(PRESETS["dr_grpo"], policy=wrong_at((-1, 0), 1e-3), micro_batch=8)
    with pytest.raises(TrainingStoppedError, match=r"before the first update the log-probability of action 0 of prompt"):
        trainer.step()


def test_injected_rows_get_their_old_logprobs_before_the_first_update():
    trainer, plain = make_trainer(policy=wrong_at(0, math.nan)), make_trainer()
    trainer.step()
    plain.step()
    torch.testing.assert_close(weights(trainer), weights(plain))


def test_nan_stops_with_the_step_and_leaves_the_weights(tmp_path):
    trainer = make_trainer()
    read = trainer.policy.read
    trainer.step()
    before = weights(trainer)
    trainer.policy.read = lambda trace, readings, mask: {r: x * math.nan for r, x in read(trace, readings, mask).items()}
    with pytest.raises(TrainingStoppedError, match=r"step 2: loss.* not finite"):
        trainer.step()
    assert torch.equal(before, weights(trainer))


def test_all_rewards_none_is_an_error():
    trainer = make_trainer(function=lambda g: [None] * len(g.samples))
    with pytest.raises(TrainingStoppedError, match=r"no reward \(letter\) answered"):
        trainer.step()


def test_only_truncated_completions_left_is_an_error():
    policy = FakeTextPolicy(length=1)
    with torch.no_grad():
        list(policy.parameters())[-1][4] = -1e4
    trainer = make_trainer(replace(PRESETS["grpo"], masks=(DropTruncated(),)), policy=policy)
    with pytest.raises(TrainingStoppedError, match="raise max_new_tokens"):
        trainer.step()


def test_group_of_one_is_refused_at_build():
    with pytest.raises(ValueError, match="group_size is 1"):
        make_trainer(replace(PRESETS["grpo"], group_size=1))


def test_reading_nobody_offers_is_refused_at_build():
    with pytest.raises(ValueError, match="entropy"):
        make_trainer(PRESETS["high_entropy"], policy=FakeTextPolicy(offers=frozenset({"logprobs"})))


def half_dead(group: Group) -> list[float]:
    """Even prompts give no spread."""
    alive = int(group.prompt.id) % 2
    return [alive * value for value in right_letter(group)]


def test_dynamic_sampling_draws_until_enough():
    algorithm = replace(PRESETS["dapo"], planner=DynamicSampling(max_rounds=10))
    trainer = make_trainer(algorithm, function=half_dead)
    metrics = trainer.step()
    assert metrics["reward/no_spread"] == 0
    assert metrics["rollout/rounds"] > 1
    assert metrics["rollout/discarded"] > 0
    assert metrics["rollout/discarded"] % 8 == 0


class Memory(Callback):
    def __init__(self):
        self.metrics, self.kept = [], []

    def after_step(self, step, metrics, examples):
        self.metrics.append((step, dict(metrics)))
        if examples is not None:
            self.keep(step, examples, "train")

    def after_evaluation(self, step, metrics, examples):
        self.metrics.append((step, dict(metrics)))
        self.keep(step, examples, "eval")

    def keep(self, step, examples, split):
        assert len(examples.scores.values) == sum(len(group.samples) for group in examples.groups)
        self.kept.append((step, split))


def test_fit_logs_evaluates_before_during_and_after():
    from mmrl.training.trainer import Records

    policy, memory = FakeTextPolicy(), Memory()
    runner = RewardRunner([NamedReward("letter", right_letter)])
    evaluator = Evaluator(policy, prompts(12)[8:11], runner, EvaluationSettings(batch_size=2), "greedy")
    trainer = make_trainer(
        policy=policy, steps=4, evaluate_every=2, samples_every=2, evaluator=evaluator, records=Records([memory])
    )
    trainer.fit()
    assert [step for step, m in memory.metrics if "eval/letter" in m] == [0, 2, 4]
    assert [step for step, m in memory.metrics if "reward/letter" in m] == [1, 2, 3, 4]
    assert ("train" in dict((split, step) for step, split in memory.kept)) and (0, "eval") in memory.kept


def test_ema_and_ref_follow_their_rules():
    policy = FakeTextPolicy()
    trainer = make_trainer(policy=policy)
    first = {name: next(iter(net.parameters())) for name, net in policy.nets.items()}
    start = first["policy"].detach().clone()
    trainer.step()
    torch.testing.assert_close(first["ema"], 0.9 * start + 0.1 * first["policy"])
    assert torch.equal(first["ref"], start)


def test_old_is_what_sampled_during_several_epochs():
    trainer = make_trainer(replace(PRESETS["grpo"], epochs=2))
    seen = []
    update = trainer.update
    trainer.update = lambda batch: (seen.append(batch.frozen[OLD_LOGPROBS].clone()), update(batch))[1]
    trainer.step()
    assert torch.equal(seen[0], seen[1])


def test_the_rate_falls_to_zero_over_all_updates_of_all_epochs():
    algorithm = replace(PRESETS["dr_grpo"], epochs=2, minibatches=2)
    trainer = make_trainer(algorithm, steps=3, optimizer=OptimizerSettings(lr=0.1, lr_schedule="linear"))
    # 3 * 2 * 2 = 12 updates, of which four belong to a step
    assert [trainer.step()["policy/lr"] for _ in range(3)] == pytest.approx([0.1 * 8 / 12, 0.1 * 4 / 12, 0.0])


@pytest.mark.parametrize("what", ["checkpoint", "stop"])
def test_a_request_is_followed_after_its_step(tmp_path: Path, what: str):
    checkpoints = Checkpoints(tmp_path, keep=0)
    asked = iter([[], [what], [], [], []])
    trainer = make_trainer(steps=5, save_every=0, records=Records(checkpoints=checkpoints, requests=lambda: next(asked)))
    trainer.fit()
    assert trainer.is_stopped == (what == "stop")
    assert checkpoints.steps() == ([2] if what == "stop" else [2, 5])
    again = make_trainer(steps=5, save_every=0)
    again.load_state_dict(checkpoints.load(2))
    again.fit()
    assert again.index == 5


def test_a_request_to_stop_at_the_last_step_comes_too_late(tmp_path: Path):
    trainer = make_trainer(steps=1, records=Records(checkpoints=Checkpoints(tmp_path), requests=lambda: ["stop"]))
    trainer.fit()
    assert not trainer.is_stopped and Checkpoints(tmp_path).steps() == [1]
