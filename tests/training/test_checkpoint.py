from pathlib import Path

import pytest
import torch

from mmrl.algorithms.samplers import Shuffled
from mmrl.training.checkpoint import CheckpointError, Checkpoints
from mmrl.training.distributed import Ranks
from mmrl.training.optim import OptimizerSettings
from tests.fakes import prompts
from tests.training.conftest import make_trainer


def state(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])


def test_resumed_run_equals_the_uninterrupted_one(tmp_path: Path):
    optimizer = OptimizerSettings(lr=1e-2, lr_schedule="linear", warmup_steps=2)
    whole = make_trainer(steps=6, optimizer=optimizer)
    metrics = [whole.step() for _ in range(6)]
    first = make_trainer(steps=6, optimizer=optimizer)
    for _ in range(3):
        first.step()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, first.state_dict(), Ranks())
    second = make_trainer(steps=6, optimizer=optimizer, sampler=Shuffled(prompts(), seed=0))
    second.load_state_dict(checkpoints.load())
    resumed = [second.step() for _ in range(3)]
    assert torch.equal(state(whole), state(second))
    for a, b in zip(metrics[3:], resumed, strict=True):
        assert {k: v for k, v in a.items() if not k.startswith("time/")} == {
            k: v for k, v in b.items() if not k.startswith("time/")
        }


def test_damaged_newest_falls_back_to_the_one_before(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, {"index": step, "policy": {"w": torch.full((3,), float(step))}}, Ranks())
    path = tmp_path / "step-2" / "policy.pt"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert checkpoints.load()["index"] == 1
    with pytest.raises(CheckpointError, match=r"policy.pt is missing or damaged"):
        checkpoints.load(2)


def test_half_written_is_never_found(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"index": 1}, Ranks())
    (tmp_path / "step-2.partial").mkdir()
    (tmp_path / "step-3").mkdir()
    assert checkpoints.load()["index"] == 1


def test_keeps_the_newest(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step, {"index": step}, Ranks())
    assert checkpoints.steps() == [2, 3]


def test_nothing_there_says_so(tmp_path: Path):
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        Checkpoints(tmp_path / "none").load()


def test_pickled_objects_are_refused(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"index": Path("evil")}, Ranks())
    with pytest.raises(Exception, match=r"[wW]eights.only|Unsupported"):
        checkpoints.load(1)
