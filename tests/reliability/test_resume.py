"""What a resumed run begins from: which checkpoint, what is forgotten on disk, and what rewards remember."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.learned import Thompson
from mmrl.app.commands.train import continue_from
from mmrl.app.run.build import Job
from mmrl.app.run.folder import RunDir
from mmrl.core.ranks import Ranks
from mmrl.core.types import Group, Prompt, Sample, Scored
from mmrl.runtime import process_state
from mmrl.runtime.process_state import seed, set_random_state
from mmrl.training.checkpoints.save import CheckpointError, Checkpoints
from mmrl.training.checkpoints.state import copy_state, load_rewards, rewards_state
from mmrl.training.rewards.cache import AnswerCache
from mmrl.training.rewards.calls import Calling
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Records, Trainer
from tests.support.fakes import FakeTextPolicy, PlayedRanks, prompts, right_letter
from tests.support.refused import refused
from tests.support.running_reward import Running
from tests.support.trainers import make_trainer, weights


def job_of(trainer: Any) -> Job:
    job = object.__new__(Job)
    object.__setattr__(job, "trainer", trainer)
    return job


def run_of(folder: Path, steps: int) -> RunDir:
    run = RunDir.create(folder)
    for step in range(steps + 1):
        run.append(step, {"loss": float(step)})
        run.samples_file("train", step).write_text("{}\n")
    return run


def lines(run: RunDir) -> list[int]:
    return [json.loads(line)["step"] for line in run.metrics_file.read_text().splitlines()]


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path):
    run, trainer = run_of(tmp_path / "run", 3), make_trainer()
    (run.checkpoints / "step-3.partial").mkdir(parents=True)
    run.metrics_file.write_text(run.metrics_file.read_text() + '{"step": 4, "lo')
    continue_from(job_of(trainer), (), run, Ranks())
    assert trainer.index == 0 and lines(run) == [] and run.sample_steps("train") == []
    assert list(run.checkpoints.iterdir()) == []


def test_a_run_goes_on_from_the_newest_whole_checkpoint_and_forgets_what_came_after(tmp_path: Path):
    run, first = run_of(tmp_path / "run", 3), make_trainer()
    checkpoints = Checkpoints(run.checkpoints)
    for _ in range(3):
        first.step()
        checkpoints.save(first.index, first.state_dict(), Ranks())
    (run.checkpoints / "step-3" / "optimizer.pt").write_bytes(b"")
    again = make_trainer()
    continue_from(job_of(again), (), run, Ranks())
    assert again.index == 2 and lines(run) == [0, 1, 2] and run.sample_steps("train") == [0, 1, 2]
    assert checkpoints.steps() == [2] and (run.checkpoints / "step-3.damaged").is_dir()


def test_a_run_whose_checkpoints_are_all_damaged_keeps_its_files(tmp_path: Path):
    run = run_of(tmp_path / "run", 1)
    (run.checkpoints / "step-1").mkdir(parents=True)
    refused("no whole checkpoint", continue_from, job_of(make_trainer()), (), run, Ranks(), error=CheckpointError)
    assert lines(run) == [0, 1]


def group(text: str) -> Group:
    return Group(0, Prompt("p", "?"), (Sample(text=text),))


def test_a_cache_comes_back_with_its_order():
    answers = {"a": 0.5, "b": Scored(0.25, {"iou": 1.0}), "c": 2}
    cache, again = AnswerCache(3, pointwise=True), AnswerCache(3, pointwise=True)
    for text, answer in answers.items():
        cache.learn(cache.look(group(text)), [answer])
    cache.look(group("a"))
    again.load_state_dict(json.loads(json.dumps(cache.state_dict())))
    for one in (cache, again):
        one.learn(one.look(group("d")), [1.0])
    kept = [[one.look(group(text)).answers.get(0) for text in "abcd"] for one in (cache, again)]
    assert kept[0] == kept[1] == [0.5, None, 2, 1.0], "b was the one looked at longest ago"
    again.load_state_dict(cache.state_dict())
    again.load_state_dict({"answers": [["00", [[0.25, {"iou": 1.0}]]]]})
    assert again.state_dict() == {"answers": [["00", [(0.25, {"iou": 1.0})]]]}


def test_a_reward_that_remembers_is_kept_unless_it_runs_where_nobody_can_ask():
    runner, again = (RewardRunner([NamedReward("running", Running())]) for _ in range(2))
    runner.score([group("x"), group("y")])
    load_rewards(again, rewards_state(runner))
    assert rewards_state(again) == rewards_state(runner) and rewards_state(again)["running"]["function"]["count"] == 2
    elsewhere = RewardRunner([NamedReward("running", Running(), call=Calling(where="process"))])
    refused("reward 'running' has a state_dict, and in processes of its own", rewards_state, elsewhere)


def test_a_network_as_a_reward_is_not_written_into_checkpoints():
    class Net(torch.nn.Module):
        def forward(self, group: Group) -> Any:
            return [0.0 for _ in group.samples]

    assert rewards_state(RewardRunner([NamedReward("net", Net())])) == {}


def test_a_run_begins_with_every_generator_at_its_seed(monkeypatch: pytest.MonkeyPatch):
    # threads of other tests draw from the module's own generator: type checks of these tests do
    own, drawn = random.Random(), []
    monkeypatch.setattr(process_state, "random", own)
    for number in (7, 7, 8):
        seed(number)
        drawn.append((own.random(), float(np.random.rand()), float(torch.rand(()))))
    assert drawn[0] == drawn[1] and all(a != b for a, b in zip(drawn[0], drawn[2], strict=True))


def test_every_process_gets_its_own_random_state_back():
    trainer, second = make_trainer(), PlayedRanks(lambda x: ["of the first", x], rank=1)
    mine = trainer.state_dict()["random"]
    object.__setattr__(trainer._run_state, "ranks", second)
    trainer.collector.ranks = second
    torch.rand(3)
    state = trainer.state_dict()
    expected = float(torch.rand(()))
    assert state["random"][0] == "of the first"
    trainer.load_state_dict(state)
    assert float(torch.rand(())) == expected
    trainer.load_state_dict(state | {"random": mine})
    set_random_state(mine[0])


def test_what_a_step_moved_is_put_back_where_it_is_thrown_away(tmp_path: Path):
    """A sampler, a buffer of rows and a cache of answers are held as they were, and written out when a step is interrupted."""
    calls = 0

    def trainer_of(stops_at: int, records: Records = Records()) -> Trainer:
        def reward(group: Group) -> list[float]:
            nonlocal calls
            calls += 1
            if calls == stops_at:
                trainer.stop.ask("SIGINT")
            return right_letter(group)

        vars(reward)["pointwise"] = True
        rewards = RewardRunner([NamedReward("letter", reward, call=Calling(cache=1000))])
        policy, settings = FakeTextPolicy(), TrainSettings(steps=5, prompts_per_step=4, micro_batch=1000)
        algorithm = PRESETS["ssr"].with_length(policy.length)
        trainer = Trainer(policy, algorithm, Thompson(prompts(), seed=3), rewards, settings, records=records)
        return trainer

    whole = trainer_of(-1)
    for _ in range(2):
        whole.step()
    before = copy_state(whole._run_state.draws())
    whole.step()
    moved, asked = copy_state(whole._run_state.draws()), calls
    whole.fit()
    assert all(repr(before[part]) != repr(moved[part]) for part in ("sampler", "planner", "rewards")), "all move"
    calls, checkpoints = 0, Checkpoints(tmp_path)
    stopped = trainer_of(asked - 1, Records(checkpoints=checkpoints))
    stopped.fit()
    assert stopped.is_stopped and stopped.index == 2
    state = checkpoints.load()
    for part in ("sampler", "planner", "rewards"):
        assert repr(state[part]) == repr(before[part]), part
    again = trainer_of(-1)
    again.load_state_dict(state)
    again.fit()
    assert torch.equal(weights(again), weights(whole))
