"""A run's folder: two starts never share one, and a start that fails leaves none."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmrl.app.commands import train
from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.run.folder import RunDir
from mmrl.app.run.launch import claimed_folder, missing_folders, take_next_free
from mmrl.app.run.signals import leave_in_order
from mmrl.core.ranks import Ranks
from mmrl.runtime.blame import AskedToLeaveError


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


def test_the_folder_is_absolute_and_held(here: Path):
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


def test_what_was_there_before_stays(here: Path):
    (here / "out").mkdir()
    (here / "runs").mkdir()
    for wanted in ("out", "runs/image"):
        with pytest.raises(ValueError, match="no"), claimed_folder(Path(wanted), Ranks()):
            raise ValueError("no")
    assert sorted(path.name for path in here.rglob("*")) == ["out", "runs"]


def test_what_a_run_has_written_stays(here: Path):
    with pytest.raises(ValueError, match="no"), claimed_folder(Path("out"), Ranks()) as path:
        RunDir.create(path).config_file.write_text("")
        raise ValueError("no")
    with pytest.raises(ValueError, match="no"), claimed_folder(Path("other"), Ranks()) as path:
        (path / "mine.txt").write_text("notes")
        raise ValueError("no")
    assert (here / "out" / "config.toml").is_file() and (here / "other" / "mine.txt").is_file()


def test_a_folder_that_cannot_be_made_is_a_sentence(here: Path):
    (here / "file").write_text("")
    with pytest.raises((ValueError, OSError), match=r"file/image"), claimed_folder(Path("file/image"), Ranks(), True):
        pytest.fail("made")
    with pytest.raises(ValueError, match="file is no folder, and a run needs one"), claimed_folder(Path("file"), Ranks()):
        pytest.fail("held")


def test_missing_folders_are_told_lowest_first(here: Path):
    assert missing_folders(here / "a" / "b") == [here / "a" / "b", here / "a"]


@pytest.mark.parametrize("words", [["output=out/put"], []])
def test_the_command_leaves_no_folder_when_it_cannot_build(words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch):
    def build(resolved: Any, run: RunDir, *rest: Any) -> Any:
        assert run.path.is_absolute() and run.path.is_dir()
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(train, "build", build)
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
