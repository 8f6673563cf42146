"""The loop: what it trains and refuses, what a run is asked for between two steps, and who hears of it."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mmrl.algorithms.masks.truncated import DropTruncated
from mmrl.algorithms.planners.base import DynamicSampling
from mmrl.core.readings import OLD_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Group
from mmrl.training.callbacks import Callback, Callbacks, Examples
from mmrl.training.checkpoints.save import Checkpoints, looks_whole
from mmrl.training.evaluate import EvaluationSettings, Evaluator
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.stopping import TrainingStoppedError, refuse_broken_weights
from mmrl.training.trainer import Records
from tests.support import fakes
from tests.support.fakes import FakeTextPolicy, right_letter
from tests.support.presets import TEXT as PRESETS
from tests.support.refused import refused
from tests.support.trainers import batches_of, make_trainer, weights


def test_epochs_and_minibatches_deal_every_row_once_per_pass():
    algorithm = replace(PRESETS["grpo"], epochs=2, minibatches=3)
    trainer = make_trainer(algorithm)
    batches = batches_of(trainer)
    trainer.step()
    seen = [tuple(row) for one in batches for row in torch.stack([one.rollouts.group_ids, one.rollouts.sample_ids], 1).tolist()]
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


@pytest.mark.parametrize(
    ("row", "more"),
    [(3, {}), (3, {"ratio_bound": 1.0, "mean_ratio_bound": 1e-6}), (-1, {"micro_batch": 8})],
    ids=["largest", "mean", "beyond the first micro-batch"],
)
def test_ratio_gate_stops_before_the_first_update(row, more):
    trainer = make_trainer(policy=wrong_at((row, 0), 1e-3), **more)
    before = weights(trainer)
    with pytest.raises(TrainingStoppedError, match=r"before the first update the log-.* action 0 of prompt .*beyond ratio_bound"):
        trainer.step()
    assert torch.equal(before, weights(trainer))


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
    refused(r"step 2: loss.* not finite", trainer.step, error=TrainingStoppedError)
    assert torch.equal(before, weights(trainer))


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_weights_that_an_update_broke_stop_the_run(broken: float):
    weights = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(0))]
    refuse_broken_weights(weights, 5, 1e-3)
    with torch.no_grad():
        weights[1][1, 0] = broken
    with pytest.raises(TrainingStoppedError, match=r"step 5: the update made weights infinite or NaN at a learning rate of 0\.5"):
        refuse_broken_weights(weights, 5, 0.5)


def test_no_reward_that_answers_and_only_truncated_completions_are_errors():
    with pytest.raises(TrainingStoppedError, match=r"no reward \(letter\) answered"):
        make_trainer(function=lambda g: [None] * len(g.samples)).step()
    policy = FakeTextPolicy(length=1)
    with torch.no_grad():
        list(policy.parameters())[-1][4] = -1e4
    trainer = make_trainer(replace(PRESETS["grpo"], masks=(DropTruncated(),)), policy=policy)
    refused("raise max_new_tokens", trainer.step, error=TrainingStoppedError)


def test_a_group_of_one_and_a_reading_nobody_offers_are_refused_at_build():
    refused("group_size is 1", make_trainer, replace(PRESETS["grpo"], group_size=1))
    refused("entropy", make_trainer, PRESETS["high_entropy"], policy=FakeTextPolicy(offers=frozenset({"logprobs"})))


def half_dead(group: Group) -> list[float]:
    """Even prompts give no spread."""
    alive = int(group.prompt.id) % 2
    return [alive * value for value in right_letter(group)]


def test_dynamic_sampling_draws_until_enough():
    algorithm = replace(PRESETS["dapo"], planner=DynamicSampling(max_rounds=10))
    metrics = make_trainer(algorithm, function=half_dead).step()
    assert metrics["reward/no_spread"] == 0 and metrics["rollout/rounds"] > 1
    assert metrics["rollout/discarded"] > 0 and metrics["rollout/discarded"] % 8 == 0


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
    seen = batches_of(trainer)
    trainer.step()
    assert torch.equal(seen[0].frozen[OLD_LOGPROBS], seen[1].frozen[OLD_LOGPROBS])


def test_the_rate_falls_to_zero_over_all_updates_of_all_epochs():
    algorithm = replace(PRESETS["dr_grpo"], epochs=2, minibatches=2)
    trainer = make_trainer(algorithm, steps=3, optimizer=OptimizerSettings(lr=0.1, lr_schedule="linear"))
    # 3 * 2 * 2 = 12 updates, of which four belong to a step
    assert [trainer.step()["policy/lr"] for _ in range(3)] == pytest.approx([0.1 * 8 / 12, 0.1 * 4 / 12, 0.0])


@pytest.mark.parametrize("what", ["checkpoint", "stop"])
def test_a_request_is_followed_after_its_step(tmp_path: Path, what: str):
    checkpoints, asked = Checkpoints(tmp_path, keep=0), iter([[], [what], [], [], []])
    trainer = make_trainer(steps=5, save_every=0, records=Records(checkpoints=checkpoints, requests=lambda: next(asked)))
    trainer.fit()
    assert (trainer.is_stopped, checkpoints.steps()) == ((True, [2]) if what == "stop" else (False, [2, 5]))
    again = make_trainer(steps=5, save_every=0, optimizer=OptimizerSettings(lr=0.5, lr_schedule="linear", eps=0.1))
    again.load_state_dict(checkpoints.load(2))
    now = [again.optimizer.param_groups[0][name] for name in ("lr", "eps")]
    assert now == [0.5 * (1 - 2 / 5), 0.1], "settings that are others by now hold from the next update on"
    again.fit()
    assert again.index == 5


def test_a_request_to_stop_at_the_last_step_comes_too_late(tmp_path: Path):
    trainer = make_trainer(steps=1, records=Records(checkpoints=Checkpoints(tmp_path), requests=lambda: ["stop"]))
    trainer.fit()
    assert not trainer.is_stopped and Checkpoints(tmp_path).steps() == [1]


class Ear(Callback):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []
        self.shown: list[int] = []

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        assert "loss" in metrics and "eval/total" not in metrics
        self.heard.append(("step", step))
        if examples is not None:
            self.shown.append(step)
            assert len(examples.scores.total()) == sum(len(group.samples) for group in examples.groups)

    def after_evaluation(self, step: int, metrics: Mapping[str, float], examples: Examples) -> None:
        assert "eval/letter" in metrics and len(examples.groups) == 2
        self.heard.append(("evaluation", step))

    def after_checkpoint(self, step: int, folder: Path) -> None:
        assert folder.name == f"step-{step}" and looks_whole(folder)
        self.heard.append(("checkpoint", step))

    def close(self) -> None:
        self.heard.append(("close", 0))


class StepsOnly(Callback):
    """Inherits what it does not want to hear of."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        self.steps.append(step)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_evaluations_and_checkpoints_are_told_once_and_in_order(tmp_path: Path, asynchronous: bool):
    ear, few = Ear(), StepsOnly()
    policy = fakes.FakeTextPolicy()
    rewards = RewardRunner([NamedReward("letter", fakes.right_letter)])
    evaluator = Evaluator(policy, fakes.prompts()[:2], rewards, EvaluationSettings(batch_size=1), "greedy")
    checkpoints = Checkpoints(tmp_path, keep=1, asynchronous=asynchronous)
    often: dict[str, Any] = {"steps": 5, "save_every": 2, "evaluate_every": 4, "samples_every": 3}
    make_trainer(policy=policy, evaluator=evaluator, records=Records([ear, few], checkpoints), **often).fit()
    assert few.steps == [1, 2, 3, 4, 5]
    assert ear.shown == [1, 3]
    steps = {what: [step for heard, step in ear.heard if heard == what] for what, _ in ear.heard}
    assert (steps["evaluation"], steps["checkpoint"]) == ([0, 4, 5], [2, 4, 5])
    assert ear.heard.index(("checkpoint", 2)) > ear.heard.index(("step", 2))
    assert ear.heard.index(("checkpoint", 2)) < ear.heard.index(("step", 5)), "told while the run goes on"


def test_a_checkpoint_that_was_not_written_is_not_told_of(tmp_path: Path):
    ear = Ear()
    callbacks = Callbacks([ear], looks_whole)
    callbacks.expect_checkpoint(3, tmp_path / "step-3")
    callbacks.look_for_checkpoints()
    callbacks.look_for_checkpoints(settled=True)
    Checkpoints(tmp_path).folder.joinpath("step-3").mkdir()
    callbacks.look_for_checkpoints(settled=True)
    assert ear.heard == []


def test_all_are_closed_though_one_fails():
    class Broken(Callback):
        def close(self) -> None:
            raise ValueError("disk full")

    ear = Ear()
    refused("disk full", Callbacks([Broken(), ear], Path.is_dir).close)
    assert ear.heard == [("close", 0)]


def test_a_callback_that_raises_ends_the_run():
    class Limit(Callback):
        def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
            if step == 2:
                raise ValueError("far enough")

    trainer = make_trainer(records=Records([Limit()]), steps=5)
    refused("far enough", trainer.fit)
    assert trainer.index == 2
