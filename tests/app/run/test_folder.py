import json
import logging
import math
from pathlib import Path

import pytest

from mmrl.app.run.folder import RunDir, early_warnings


def test_a_new_run_notes_versions_and_an_old_one_is_never_overwritten(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "a" / "run")
    assert json.loads(run.versions_file.read_text())["torch"]
    RunDir.create(run.path)
    run.append(1, {"loss": 1.0})
    with pytest.raises(ValueError, match=r"already holds a run: choose another output folder, or continue it with --resume"):
        RunDir.create(run.path)


def test_opening_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        RunDir.open(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"holds neither config\.toml nor metrics\.jsonl"):
        RunDir.open(tmp_path)


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
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is not JSON"):
        run.read_metrics()


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
    lines = [json.loads(text) for text in run.warnings_file.read_text().splitlines()]
    assert [(line["step"], line["text"]) for line in lines] == [(0, "the data have duplicates"), (0, "the clip range is wide")]
    with early_warnings() as early:
        log.warning("the data have duplicates")
        log.warning("the disk is slow")
        with run.record_warnings(lambda: 5, early):
            log.warning("the clip range is wide")
    texts = [json.loads(text)["text"] for text in run.warnings_file.read_text().splitlines()]
    assert texts[2:] == ["the disk is slow", "the clip range is wide"], "a run that resumes says no early one twice"


def test_warnings_are_recorded_with_their_step_and_only_inside(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    log = logging.getLogger("mmrl")
    with run.record_warnings(lambda: 7):
        log.warning("%d %% unparsed", 30)
        logging.getLogger("mmrl.data").error("gone")
        log.info("fine")
    log.warning("after")
    lines = [json.loads(text) for text in run.warnings_file.read_text().splitlines()]
    assert lines == [
        {"step": 7, "level": "warning", "text": "30 % unparsed"},
        {"step": 7, "level": "error", "text": "gone"},
    ]
