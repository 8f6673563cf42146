import errno
import hashlib
import os
import resource
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.ranks import Ranks
from mmrl.training.checkpoints import save as checkpoint
from mmrl.training.checkpoints.save import CheckpointError, Checkpoints, Pace, looks_whole
from mmrl.training.optim import OptimizerSettings
from mmrl.training.trainer import Records
from tests.attacks.disks import killed_at_every_operation
from tests.support.fakes import PlayedRanks, prompts
from tests.support.refused import refused
from tests.support.trainers import make_trainer, untimed, weights


def numbered(step: int, size: int = 3) -> dict[str, Any]:
    return {"index": step, "policy": {"w": torch.full((size,), float(step))}}


def saved(folder: Path, *steps: int, **options: Any) -> Checkpoints:
    checkpoints = Checkpoints(folder, **options)
    for step in steps:
        checkpoints.save(step, numbered(step), Ranks())
    return checkpoints


def flip_last_byte(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


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
    assert torch.equal(weights(whole), weights(second))
    for a, b in zip(metrics[3:], resumed, strict=True):
        assert untimed(a) == untimed(b)


def test_a_state_of_another_version_is_refused_by_name():
    trainer = make_trainer()
    state = trainer.state_dict()
    del state["rewards"], state["shuffle"]
    refused("the checkpoint lacks rewards, shuffle: another version of mmrl wrote it", trainer.load_state_dict, state)


@pytest.mark.parametrize("name", ["policy.pt", "rest.pt", "manifest.json"])
def test_damaged_newest_falls_back_to_the_one_before(tmp_path: Path, name: str):
    checkpoints = saved(tmp_path, 1, 2)
    flip_last_byte(tmp_path / "step-2" / name)
    assert checkpoints.load()["index"] == 1
    refused(f"{name} is (missing or )?damaged", checkpoints.load, 2, error=CheckpointError)


def test_a_checkpoint_of_another_format_is_refused_and_none_before_it_is_tried(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    checkpoints = saved(tmp_path, 1, 2)
    manifest = tmp_path / "step-2" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"format": {checkpoint.FORMAT}', '"format": 2'))
    for look in (checkpoints.load, checkpoints.recover):
        refused(r"step-2 was written by another version .* \(checkpoint format 2, this one", look, error=CheckpointError)
    assert caplog.text == "" and checkpoints.steps() == [1, 2]


@pytest.mark.parametrize("text", ["", "[]", '{"step": 2, "format": 2}', '{"sha256": 3, "step": 2, "format": 2}'])
def test_a_manifest_that_says_nothing_is_damage_and_what_is_half_written_never_found(tmp_path: Path, text: str):
    checkpoints = saved(tmp_path, 1, 2)
    (tmp_path / "step-2" / "manifest.json").write_text(text)
    (tmp_path / "step-3.partial").mkdir()
    (tmp_path / "step-4").mkdir()
    refused("step-4 has no manifest.json: .*; take one of step-1, step-2$", checkpoints.load, 4, error=CheckpointError)
    assert checkpoints.load()["index"] == 1 and checkpoints.recover() == 1


def test_recovering_clears_away_and_sets_damaged_ones_aside_while_looking_changes_nothing(tmp_path: Path):
    checkpoints = saved(tmp_path, 1, 2, 3, keep=0)
    flip_last_byte(tmp_path / "step-3" / "policy.pt")
    (tmp_path / "step-4.partial").mkdir()
    (tmp_path / "step-2").rename(tmp_path / "step-2.replaced")
    shutil.copytree(tmp_path / "step-1", tmp_path / "step-1.replaced")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert checkpoints.load()["index"] == 1 and sorted(path.name for path in tmp_path.iterdir()) == before
    assert checkpoints.recover() == 2, "the only copy of step 2 was on its way to be replaced"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2", "step-3.damaged"]
    assert checkpoints.load_whole(2)["index"] == 2


def test_nothing_there_says_so_and_if_all_are_damaged_the_run_does_not_quietly_start_again(tmp_path: Path):
    refused("no whole checkpoint", Checkpoints(tmp_path / "none").load, error=CheckpointError)
    assert Checkpoints(tmp_path / "none").recover() is None
    checkpoints = saved(tmp_path, 1)
    (tmp_path / "step-1" / "rest.pt").unlink()
    refused("no whole checkpoint", checkpoints.recover, error=CheckpointError)


def test_plain_values_alone_are_kept_and_come_back_and_the_place_of_others_is_named(tmp_path: Path):
    with pytest.raises(TypeError, match="the state 'sampler' 'path' holds PosixPath, which no checkpoint can keep"):
        Checkpoints(tmp_path).save(1, {"sampler": {"path": Path("evil")}}, Ranks())
    assert not Checkpoints(tmp_path).steps()
    kept = {"a": [1, 2.5, "x", None, True, (3, [4])], "b": {7: {"t": torch.arange(3)}}, "float": float("nan")}
    Checkpoints(tmp_path).save(1, kept, Ranks())
    found = Checkpoints(tmp_path).load()
    assert found["a"] == kept["a"] and torch.equal(found["b"][7]["t"], torch.arange(3)) and found["float"] != found["float"]


def test_keeps_the_newest_every_nth_and_the_best(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=2, keep_every=4, keep_best="eval/total")
    scores = {1: 0.1, 2: 0.5, 3: 0.5, 4: 0.2, 5: 0.3, 6: float("nan"), 7: 0.4, 8: 0.1, 9: 0.0}
    for step, score in scores.items():
        checkpoints.save(step, numbered(step), Ranks(), {"loss": 1.0, "eval/total": score})
    assert checkpoints.steps() == [2, 4, 8, 9]
    for step, measured in {10: {"eval/total": 0.6}, 11: {"loss": 0.0}, 12: {}, 13: {}}.items():
        checkpoints.save(step, numbered(step), Ranks(), measured)
    assert checkpoints.steps() == [4, 8, 10, 12, 13], "the best is another one now, and known to whoever opens the folder"


def test_a_metric_that_the_run_does_not_measure_is_refused_or_said_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    checkpoints = Checkpoints(tmp_path, keep_best="eval/totl")
    checkpoints.save(1, numbered(1), Ranks(), {"loss": 1.0})
    checkpoints.close()
    assert "no checkpoint is kept for its eval/totl" in caplog.text
    with pytest.raises(CheckpointError, match="keep_best is 'eval/totl'; this run measures eval/iou, eval/total"):
        checkpoints.save(2, numbered(2), Ranks(), {"loss": 1.0, "eval/total": 1.0, "eval/iou": 1.0})


def test_a_damaged_one_is_not_counted_among_the_newest(tmp_path: Path):
    checkpoints = saved(tmp_path, 1, 2, keep=2)
    (tmp_path / "step-2" / "policy.pt").write_bytes(b"short")
    checkpoints.save(3, numbered(3), Ranks())
    assert checkpoints.steps() == [1, 3]


def test_old_ones_go_only_when_the_new_one_is_whole_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoints = saved(tmp_path, 1, keep=1)
    order: list[str] = []
    sync, delete = checkpoint.sync, checkpoint.delete
    monkeypatch.setattr(checkpoint, "sync", lambda folder: (order.append(folder.name), sync(folder)))
    monkeypatch.setattr(
        checkpoint, "delete", lambda path: (order.append(f"delete {looks_whole(tmp_path / 'step-2')}"), delete(path))
    )
    checkpoints.save(2, numbered(2), Ranks())
    assert order == ["step-2.partial", tmp_path.name, "delete True"] and checkpoints.steps() == [2]


@pytest.mark.parametrize("again", [True, False], ids=["same step again", "next step"])
def test_a_kill_at_any_moment_of_a_write_leaves_a_whole_checkpoint(tmp_path: Path, again: bool):
    """The process dies before its nth sync, rename or removal, for every n, with one checkpoint kept."""
    moments = killed_at_every_operation(again, tmp_path, {os: ("fsync", "rename", "unlink")})
    assert int(moments.removesuffix(" operations")) > 8


class Held:
    """Stands in for the writing of files, which waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.begun, self.write = threading.Event(), threading.Event(), checkpoint.write
        self.running = self.most = 0
        monkeypatch.setattr(checkpoint, "write", self)

    def __call__(self, *args: Any) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun.set()
        assert self.go.wait(60)
        self.write(*args)
        self.running -= 1


def test_writing_beside_the_run_keeps_the_state_of_the_moment_and_one_write_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    held, weight, known = Held(monkeypatch), torch.ones(4, requires_grad=True), [1.0]
    checkpoints = Checkpoints(tmp_path, asynchronous=True)
    live = {"index": 1, "policy": {"w": weight}, "planner": {"rewards": known}}
    checkpoints.save(1, live, Ranks())
    assert held.begun.wait(60) and not checkpoints.steps(), "it returned before anything was written"
    with torch.no_grad():
        weight.fill_(2.0)
    known.append(2.0)
    second = threading.Thread(target=checkpoints.save, args=(2, live, Ranks()))
    second.start()
    second.join(0.05)
    assert second.is_alive() and held.most == 1, "the next one waits"
    held.go.set()
    second.join(60)
    checkpoints.close()
    assert held.most == 1 and checkpoints.steps() == [1, 2]
    found = [checkpoints.load(step) for step in (1, 2)]
    assert [one["policy"]["w"].tolist() for one in found] == [[1.0] * 4, [2.0] * 4]
    assert [one["planner"]["rewards"] for one in found] == [[1.0], [1.0, 2.0]]


def test_updates_on_the_host_wait_until_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    held, found = Held(monkeypatch), list[list[int]]()
    checkpoints = Checkpoints(tmp_path, asynchronous=True)
    trainer = make_trainer(records=Records(checkpoints=checkpoints))
    trainer.save()
    credit, update = trainer.credit, trainer.update
    monkeypatch.setattr(trainer, "credit", lambda *given: found.append(checkpoints.steps()) or held.go.set() or credit(*given))
    monkeypatch.setattr(trainer, "update", lambda batch: found.append(checkpoints.steps()) or update(batch))
    trainer.step()
    assert found[:2] == [[], [0]], "sampling goes on beside it"


def test_a_final_one_is_on_disk_at_once_and_not_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoints = Checkpoints(tmp_path, asynchronous=True)
    checkpoints.save(1, numbered(1), Ranks(), final=True)
    assert checkpoints.load()["index"] == 1
    checkpoints.save(2, numbered(2), Ranks())
    monkeypatch.setattr(checkpoint, "write", lambda *_: pytest.fail("it is there already"))
    checkpoints.save(2, numbered(2), Ranks(), final=True)
    assert checkpoints.load()["index"] == 2


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_the_old_ones_and_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoints = saved(tmp_path, 1, keep=1)
    monkeypatch.setattr(checkpoint.os, "fsync", full_disk)
    untouched = r"\(OSError: .*No space left.*bytes are free there\); the checkpoints of steps 1 are untouched: make room"
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/step-2 could not be written {untouched}"):
        checkpoints.save(2, numbered(2), Ranks())
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"] and checkpoints.load()["index"] == 1


def test_a_limit_of_the_system_within_a_file_is_told_as_what_it_is(tmp_path: Path):
    """torch hides the error of the file behind one of its own archive."""
    checkpoints = saved(tmp_path, 1, keep=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(CheckpointError, match=r"OSError: .*File too large.*steps 1 are untouched"):
            checkpoints.save(2, numbered(2, size=1 << 20), Ranks())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    checkpoints.save(2, numbered(2, size=1 << 20), Ranks())
    assert checkpoints.steps() == [2]


def test_a_failure_beside_the_run_is_said_and_tried_again_before_it_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    checkpoints = Checkpoints(tmp_path, asynchronous=True)
    checkpoints.save(1, numbered(1), Ranks(), final=True)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", full_disk)
        checkpoints.save(2, numbered(2), Ranks())
        checkpoints.close()
        assert "No space left" in caplog.text and "The run goes on and tries again at the next checkpoint" in caplog.text
    checkpoints.save(3, numbered(3), Ranks())
    assert checkpoints.steps() == [1, 3], "the next one was written while the run waited"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", full_disk)
        checkpoints.save(4, numbered(4), Ranks())
        refused("step-5 could not be written", checkpoints.save, 5, numbered(5), Ranks(), error=CheckpointError)
    assert checkpoints.load()["index"] == 3


def test_all_ranks_hear_of_a_failure_on_one(tmp_path: Path):
    """Rank 1 of two writes nothing itself."""
    second = PlayedRanks(lambda x: ["checkpoint x could not be written", x], 1)
    refused("could not be written", Checkpoints(tmp_path).save, 1, numbered(1), second, error=CheckpointError)


def test_a_finished_file_is_closed_and_knows_its_checksum(tmp_path: Path):
    file = checkpoint.Hashed(tmp_path / "part")
    assert file.write(b"abc") == 3
    file.finish()
    assert file.stream.closed and file.size == 3
    assert file.hash.hexdigest() == hashlib.sha256(b"abc").hexdigest()
    assert (tmp_path / "part").read_bytes() == b"abc"


def test_time_asks_for_a_checkpoint_before_too_much_could_be_lost(tmp_path: Path):
    now = [0.0]
    pace = Pace(100.0, lambda: now[0])
    late: list[bool] = []
    for seconds in (40.0, 40.0, 10.0, 10.0, 130.0):
        now[0] += seconds
        late.append(pace.is_late())
        if late[-1]:
            pace.note()
    # 40 + 40 fits; 80 + 40 does not, so it is saved at 80; 10 + 10 and 20 + 10 fit; after a step of 130 every step is saved
    assert late == [False, True, False, False, True]
    assert Checkpoints(tmp_path).is_late() is False


def test_a_run_is_saved_by_the_clock_and_goes_on_from_there(tmp_path: Path):
    now = iter(range(0, 1000, 10))
    checkpoints = Checkpoints(tmp_path, keep=0, pace=Pace(25.0, lambda: float(next(now))))
    whole = make_trainer(steps=6, records=Records(checkpoints=checkpoints))
    whole.fit()
    assert checkpoints.steps() == [2, 3, 4, 5, 6]
    again = make_trainer(steps=6)
    again.load_state_dict(checkpoints.load(2))
    again.fit()
    assert torch.equal(weights(whole), weights(again))
