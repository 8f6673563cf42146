"""A run's folder: claimed, written and read again, and where and under which settings a resumed run goes on."""

import json
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.app.commands import train as commands
from mmrl.app.commands.train import TrainArguments, run_training, train
from mmrl.app.config import run as configs
from mmrl.app.config.run import load
from mmrl.app.evaluation.compare import compare
from mmrl.app.report.data import load as load_run
from mmrl.app.run.evaluation_folder import EvaluationDir, Subject
from mmrl.app.run.folder import RunDir, early_warnings, lines_of_changes, read_lines
from mmrl.app.run.launch import claimed_folder, missing_folders, take_next_free
from mmrl.app.run.resume import changed_settings, check_resume, enter, is_finished, note_changes
from mmrl.app.run.sample_files import digest_of_prompt
from mmrl.app.run.signals import leave_in_order
from mmrl.core.ranks import Ranks
from mmrl.core.types import Prompt, Video
from mmrl.data.validate import FILE_ROW
from mmrl.runtime.blame import AskedToLeaveError
from tests.support.refused import refused


def test_a_new_run_notes_versions_an_old_one_is_never_overwritten_and_nothing_else_is_opened(tmp_path: Path) -> None:
    refused("is not a folder", RunDir.open, tmp_path / "nowhere", error=FileNotFoundError)
    refused(r"holds neither config\.toml nor metrics\.jsonl", RunDir.open, tmp_path, error=FileNotFoundError)
    run = RunDir.create(tmp_path / "a" / "run")
    assert json.loads(run.versions_file.read_text())["torch"]
    RunDir.create(run.path)
    run.append(1, {"loss": 1.0})
    refused(r"already holds a run: choose another output folder, or continue it with --resume", RunDir.create, run.path)


def test_metrics_come_back_as_written_and_every_line_is_plain_json(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    run.append(3, {"reward/iou": 0.5, "policy/kl": math.nan, "loss": -math.inf})
    (line,) = run.read_metrics().lines
    assert line["step"] == 3 and line["reward/iou"] == 0.5 and math.isnan(line["policy/kl"]) and line["loss"] == -math.inf
    assert json.loads(run.metrics_file.read_text(), parse_constant=lambda _: pytest.fail("not JSON"))["policy/kl"] == "NaN"


def test_a_torn_last_line_is_tolerated_and_said_a_broken_one_before_is_an_error(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    run.append(1, {"a": 1.0})
    run.metrics_file.write_text(run.metrics_file.read_text() + '{"step": 2, "a"')
    read = run.read_metrics()
    assert read.torn and [line["step"] for line in read.lines] == [1]
    run.metrics_file.write_text(run.metrics_file.read_text() + '\n{"step": 3}\n')
    refused(r"metrics\.jsonl, line 2 is not JSON", run.read_metrics)


def test_truncating_forgets_what_came_after_the_checkpoint_and_the_torn_line(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    for step in (0, 1, 2, 3):
        run.append(step, {"a": float(step)})
        run.samples_file("eval", step).write_text("")
    run.metrics_file.write_text(run.metrics_file.read_text() + '{"st')
    with run.record_warnings(lambda: 3):
        logging.getLogger("mmrl").warning("late")
    run.truncate(2)
    run.append(3, {"a": 30.0})
    read = run.read_metrics()
    assert not read.torn and [line["a"] for line in read.lines] == [0.0, 1.0, 2.0, 30.0]
    assert run.sample_steps("eval") == [0, 1, 2] and run.warnings_file.read_text() == ""


def test_warnings_from_before_a_run_has_a_folder_come_first(tmp_path: Path) -> None:
    log = logging.getLogger("mmrl")
    with early_warnings() as early:
        log.warning("the data have duplicates")
        log.info("fine")
        run = RunDir.create(tmp_path)
        with run.record_warnings(lambda: 0, early):
            log.warning("the clip range is wide")
        log.warning("after")
    log.warning("much later")
    lines = read_lines(run.warnings_file).lines
    assert [(line["step"], line["text"]) for line in lines] == [(0, "the data have duplicates"), (0, "the clip range is wide")]
    with early_warnings() as early:
        log.warning("the data have duplicates")
        log.warning("the disk is slow")
        with run.record_warnings(lambda: 5, early):
            log.warning("the clip range is wide")
    texts = [line["text"] for line in read_lines(run.warnings_file).lines[2:]]
    assert texts == ["the disk is slow", "the clip range is wide"], "a run that resumes says no early one twice"


def test_warnings_are_recorded_with_their_step_and_only_inside(tmp_path: Path) -> None:
    run, log = RunDir.create(tmp_path), logging.getLogger("mmrl")
    with run.record_warnings(lambda: 7):
        log.warning("%d %% unparsed", 30)
        logging.getLogger("mmrl.data").error("gone")
        log.info("fine")
    log.warning("after")
    told = [("warning", "30 % unparsed"), ("error", "gone")]
    assert read_lines(run.warnings_file).lines == [{"step": 7, "level": level, "text": text} for level, text in told]


def test_one_that_has_no_samples_file_yet_begins_again(tmp_path: Path):
    place, config = EvaluationDir(tmp_path / "eval"), load("tiny/image", []).config
    subject = Subject("tiny:qwen3_vl as it is", "digest", 2)
    place.begin(subject, config)
    place.predictions.unlink()
    place.begin(subject, config)
    assert place.is_begun and place.predictions.read_bytes() == b""
    assert not place.differences(subject, config)


def test_prompts_are_the_same_while_they_say_and_show_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def prompt(folder: str = "a", colour: str = "red", seconds: bytes = b"12", **other: Any) -> Prompt:
        (tmp_path / folder).mkdir(exist_ok=True)
        Image.new("RGB", (4, 4), colour).save(picture := tmp_path / folder / "cat.bmp")
        (clip := tmp_path / folder / "cat.mp4").write_bytes(seconds)
        columns = {"target": str(picture), "drawn": Image.new("L", (2, 2)), "row": np.arange(9000), FILE_ROW: folder}
        media = (str(picture), Video(str(clip), start=1.0), Image.new("RGB", (3, 3), colour))
        return replace(Prompt("7", "Where?", media, Box(0, 0, 1, 1), columns), **other)

    known = digest_of_prompt(prompt())
    assert digest_of_prompt(prompt("moved")) == known
    monkeypatch.chdir(tmp_path / "a")
    shown = prompt().media
    assert digest_of_prompt(replace(prompt(), media=("cat.bmp", Video("cat.mp4", start=1.0), shown[2]))) == known
    changed: list[dict[str, Any]] = [
        {"colour": "blue"},
        {"seconds": b"123"},
        *({"id": "8"}, {"text": "What?"}, {"answer": Box(0, 0, 1, 2)}, {"media": shown[:1]}, {"source": "b"}),
        {"columns": {**prompt().columns, "row": np.arange(9000) % 8999}},
        {"media": (shown[0], Video(str(tmp_path / "a" / "cat.mp4")), shown[2])},
    ]
    found = [digest_of_prompt(prompt(**one)) for one in changed]
    assert len({known, *found}) == 1 + len(found)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def test_starts_at_the_same_time_take_different_folders(here: Path):
    together, taken = threading.Barrier(8), list[Path]()

    def start() -> None:
        together.wait()
        taken.append(take_next_free(here / "runs" / "image")[0])

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in taken) == ["image", *(f"image-{n}" for n in range(2, 9))]


def test_the_folder_is_absolute_and_held_and_missing_ones_are_told_lowest_first(here: Path):
    assert missing_folders(here / "a" / "b") == [here / "a" / "b", here / "a"]
    with claimed_folder(Path("runs/image"), Ranks(), may_be_another=True) as path:
        assert path == here / "runs" / "image" and (path / ".lock").is_file()
        with claimed_folder(Path("runs/image"), Ranks(), may_be_another=True) as other:
            assert other.name == "image-2"


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("may_be_another", [True, False])
def test_a_start_that_fails_leaves_nothing(error: type[BaseException], may_be_another: bool, here: Path):
    with pytest.raises(error), claimed_folder(Path("runs/deep/image"), Ranks(), may_be_another) as path:
        (path / "tensorboard").mkdir()
        raise error
    assert list(here.iterdir()) == []


def test_what_was_there_before_or_was_written_by_a_run_stays(here: Path):
    def fail_in(wanted: str, write: Callable[[Path], object] = lambda path: None) -> None:
        with pytest.raises(ValueError, match="no"), claimed_folder(Path(wanted), Ranks()) as path:
            write(path)
            raise ValueError("no")

    for name in ("out", "runs"):
        (here / name).mkdir()
    fail_in("out")
    fail_in("runs/image")
    assert sorted(path.name for path in here.rglob("*")) == ["out", "runs"]
    fail_in("out", lambda path: RunDir.create(path).config_file.write_text(""))
    fail_in("other", lambda path: (path / "mine.txt").write_text("notes"))
    assert (here / "out" / "config.toml").is_file() and (here / "other" / "mine.txt").is_file()


def test_a_folder_that_cannot_be_made_is_a_sentence(here: Path):
    (here / "file").write_text("")
    with pytest.raises((ValueError, OSError), match=r"file/image"), claimed_folder(Path("file/image"), Ranks(), True):
        pytest.fail("made")
    with pytest.raises(ValueError, match="file is no folder, and a run needs one"), claimed_folder(Path("file"), Ranks()):
        pytest.fail("held")


@pytest.mark.parametrize("words", [["output=out/put"], []])
def test_the_command_leaves_no_folder_when_it_cannot_build(words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch):
    def build(resolved: Any, run: RunDir, *rest: Any) -> Any:
        assert run.path.is_absolute() and run.path.is_dir()
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(commands, "build", build)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(AskedToLeaveError) as left:
        run_training(configs.load("tiny/image", words))
    assert left.value.args[0] == 128 + signal.SIGTERM
    assert list(here.iterdir()) == [] and signal.getsignal(signal.SIGTERM) is before


def test_a_start_under_nohup_is_not_hung_up():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with leave_in_order():
            signal.raise_signal(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(AskedToLeaveError), leave_in_order():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


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
        ("seed=3", "the place in the order of the prompts"),
        ("optimizer.kind=sgd", "the optimizer's memory"),
        ("policy.lora.rank=4", "adapters"),
        ("policy.model=tiny:smolvlm", "weights"),
        ('policy.freeze=["vision"]', "the weights that train"),
        ("sampler.kind=Streamed", "the sampler's place"),
    ],
)
def test_changes_under_which_a_checkpoint_means_nothing_are_refused(run: RunDir, word: str, held: str):
    key = word.partition("=")[0]
    refused(rf"{key} is .*hold {held} of that; leave {key} as it was", check_resume, resolve(run, "steps=3", word), run)
    check_resume(resolve(run, "steps=3", "optimizer.lr=0.5"), run)
    refused("keeps ref beside the live weights, .* want none: leave", check_resume, resolve(run, "algorithm.preset=dapo"), run)


def test_another_output_is_refused_and_the_own_one_is_not(run: RunDir, tmp_path: Path):
    check_resume(resolve(run, output=run.path), run)
    refused(r"--output is .*other.*, and --resume continues .*run", check_resume, resolve(run, output=tmp_path / "other"), run)
    refused("--output is 'elsewhere'", check_resume, resolve(run, "output=elsewhere"), run)
    named = tmp_path / "mine.toml"
    configs.save(configs.load("tiny/image", ["output=third"]).config, named)
    refused(r"output of .*mine\.toml is 'third'", check_resume, resolve(run, str(named)), run)
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


def test_a_run_goes_back_to_where_it_was_started(run: RunDir, tmp_path: Path):
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
    for folder in (start := tmp_path / "start", other := tmp_path / "other"):
        folder.mkdir()
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
    assert {"step": 1, "run/changed_settings": 2.0} in run.read_metrics().lines
    before = run.metrics_file.read_bytes()
    again = run_training(resolve(run), run.path)
    assert "is finished, with step 2 as its last" in capsys.readouterr().err
    assert again.metrics_file.read_bytes() == before
