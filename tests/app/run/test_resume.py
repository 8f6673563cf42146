"""A resumed run: where it goes on, which settings may change, and who is told of those that did."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mmrl.app.commands.train import TrainArguments, run_training, train
from mmrl.app.config import run as configs
from mmrl.app.evaluation.compare import compare
from mmrl.app.report.data import load as load_run
from mmrl.app.run.folder import RunDir, lines_of_changes
from mmrl.app.run.resume import changed_settings, check_resume, enter, is_finished, note_changes

SMALL = ["tiny/image", "steps=1", "evaluation.num_prompts=2", "data.size=8", "audit_steps=1"]


def started(folder: Path, *words: str) -> RunDir:
    """A run of configs/tiny/image.toml that says it took one step."""
    run = RunDir.create(folder)
    configs.save(configs.load("tiny/image", ["steps=1", *words]).config, run.config_file)
    step = run.checkpoints / "step-1"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("{}")
    return run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr("mmrl.training.checkpoints.save.looks_whole", Path.is_dir)
    return started(tmp_path / "run")


def resolve(run: RunDir, *words: str, output: Path | None = None) -> Any:
    return TrainArguments(list(words), resume=run.path, output=output).resolve()


@pytest.mark.parametrize(
    ("word", "held"),
    [
        ("ahead=1", "the draws of steps in flight"),
        ("optimizer.kind=sgd", "the optimizer's memory"),
        ("policy.lora.rank=4", "adapters"),
        ("policy.model=tiny:smolvlm", "weights"),
        ('policy.freeze=["vision"]', "the weights that train"),
        ("sampler.kind=Streamed", "the sampler's place"),
    ],
)
def test_changes_under_which_a_checkpoint_means_nothing_are_refused(run: RunDir, word: str, held: str):
    key = word.partition("=")[0]
    with pytest.raises(ValueError, match=rf"{key} is .*hold {held} of that; leave {key} as it was"):
        check_resume(resolve(run, "steps=3", word), run)
    check_resume(resolve(run, "steps=3", "optimizer.lr=0.5", "seed=3"), run)


def test_another_output_is_refused_and_the_own_one_is_not(run: RunDir, tmp_path: Path):
    check_resume(resolve(run, output=run.path), run)
    with pytest.raises(ValueError, match=r"--output is .*other.*, and --resume continues .*run where it lies"):
        check_resume(resolve(run, output=tmp_path / "other"), run)
    with pytest.raises(ValueError, match="--output is 'elsewhere'"):
        check_resume(resolve(run, "output=elsewhere"), run)
    named = tmp_path / "mine.toml"
    configs.save(configs.load("tiny/image", ["output=third"]).config, named)
    with pytest.raises(ValueError, match=r"output of .*mine\.toml is 'third'"):
        check_resume(resolve(run, str(named)), run)
    moved = RunDir(run.path.rename(tmp_path / "moved"))
    check_resume(resolve(moved), moved)


def test_a_finished_run_says_so_and_one_that_took_more_steps_than_asked_for_is_none(run: RunDir):
    assert "is finished, with step 1 as its last" in is_finished(resolve(run), run)
    assert is_finished(resolve(run, "steps=2"), run) == ""
    (run.checkpoints / "step-1").rename(run.checkpoints / "step-22")
    run.config_file.write_text(run.config_file.read_text().replace("steps = 1\n", "steps = 40\n", 1))
    said = is_finished(resolve(run, "steps=14"), run)
    assert said == f"steps is 14, and {run.path} has taken 22 already, so there is nothing to do: leave steps out to go on to 40"
    assert is_finished(resolve(run), run) == ""


def test_a_new_preset_replaces_the_parts_that_the_run_has_spelled_out(run: RunDir):
    before = configs.load(str(run.config_file)).config
    after = resolve(run, "algorithm.preset=dr_grpo").config
    assert after.algorithm.label == "dr_grpo"
    changed = {".".join(one.path): (one.before, one.after) for one in changed_settings(before, after)}
    assert changed["algorithm.preset"] == ("grpo", "dr_grpo")
    assert changed["algorithm.advantage.scale"] == ("group", "none")
    assert changed["algorithm.aggregation.kind"] == ("SequenceMean", "FixedLength")
    assert changed_settings(before, resolve(run, "output=x").config) == [], "nothing but the folder"


def test_changes_stand_at_the_step_from_which_they_hold(run: RunDir):
    before = configs.load(str(run.config_file)).config
    for step, lr in ((10, "0.5"), (30, "0.25")):
        note_changes(run, step, changed_settings(before, resolve(run, f"optimizer.lr={lr}").config))
    assert lines_of_changes(run) == [
        "changed at step 11: optimizer.lr 0.001 -> 0.5",
        "changed at step 31: optimizer.lr 0.001 -> 0.25",
    ]
    run.truncate(20)
    assert lines_of_changes(run)[1] == "changed at step 21: optimizer.lr 0.001 -> 0.25", "config.toml still says so"
    run.truncate(-1)
    assert lines_of_changes(run) == []


def test_a_run_goes_back_to_where_it_was_started(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    start = tmp_path / "start"
    start.mkdir()
    run.start_file.write_text(f"{start}\n")
    assert enter(run) == f"relative paths are those of {start}, where the run was started"
    assert Path.cwd() == start
    assert enter(run) == ""
    run.start_file.write_text(f"{tmp_path / 'gone'}\n")
    assert "which is not there" in enter(run)
    assert Path.cwd() == start
    run.start_file.unlink()
    assert enter(run) == ""


def test_a_changed_run_lists_it_before_its_first_step_and_in_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    start, other = tmp_path / "start", tmp_path / "other"
    start.mkdir()
    other.mkdir()
    monkeypatch.chdir(start)
    train(TrainArguments(SMALL, output=Path("run")))
    monkeypatch.chdir(other)
    capsys.readouterr()
    words = ["steps=2", "optimizer.lr=0.0005"]
    run = train(TrainArguments(words, resume=Path(os.path.relpath(start / "run"))))
    told = capsys.readouterr().err
    assert run.path == start / "run" and not any(other.iterdir())
    listed = told.index("changed from step 2 on:\n  steps 1 -> 2\n  optimizer.lr 0.001 -> 0.0005\n")
    assert listed < told.index("step 2/2")
    sentence = "changed at step 2: steps 1 -> 2, optimizer.lr 0.001 -> 0.0005"
    assert f"Settings {sentence}." in load_run(run.path).notices
    assert sentence in run.report_file.read_text().replace("&gt;", ">")
    assert any(sentence in notice for notice in compare(run.path, run.path).notices)
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert {"step": 1, "run/changed_settings": 2.0} in lines
    before = run.metrics_file.read_bytes()
    again = run_training(resolve(run), run.path)
    assert "is finished, with step 2 as its last" in capsys.readouterr().err
    assert again.metrics_file.read_bytes() == before
