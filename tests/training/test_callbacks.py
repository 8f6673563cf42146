"""Who watches a run hears of every step, evaluation and checkpoint, once and in order; checkpoints only when they are whole."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from mmrl.training.callbacks import Callback, Callbacks, Examples
from mmrl.training.checkpoints.save import Checkpoints, looks_whole
from mmrl.training.evaluate import EvaluationSettings, Evaluator
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.trainer import Records
from tests.support import fakes
from tests.support.trainers import make_trainer


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
        assert "eval/total" in metrics and len(examples.groups) == 2
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
    evaluator = Evaluator(policy, fakes.prompts()[:2], rewards, EvaluationSettings())
    checkpoints = Checkpoints(tmp_path, keep=1, asynchronous=asynchronous)
    trainer = make_trainer(
        policy=policy,
        evaluator=evaluator,
        records=Records([ear, few], checkpoints),
        steps=5,
        save_every=2,
        evaluate_every=4,
        samples_every=3,
    )
    trainer.fit()
    assert few.steps == [1, 2, 3, 4, 5]
    assert ear.shown == [1, 3]
    assert [one for one in ear.heard if one[0] == "evaluation"] == [("evaluation", step) for step in (0, 4, 5)]
    assert [one for one in ear.heard if one[0] == "checkpoint"] == [("checkpoint", step) for step in (2, 4, 5)]
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
    with pytest.raises(ValueError, match="disk full"):
        Callbacks([Broken(), ear], Path.is_dir).close()
    assert ear.heard == [("close", 0)]


def test_a_callback_that_raises_ends_the_run():
    class Limit(Callback):
        def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
            if step == 2:
                raise ValueError("far enough")

    trainer = make_trainer(records=Records([Limit()]), steps=5)
    with pytest.raises(ValueError, match="far enough"):
        trainer.fit()
    assert trainer.index == 2
