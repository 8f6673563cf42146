"""What a run is asked for between two steps."""

from pathlib import Path

import pytest

from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.trainer import Records
from tests.support.trainers import make_trainer


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
