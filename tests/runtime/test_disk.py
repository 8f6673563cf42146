"""Files that do not fit, whose limit is the kernel's own, and paths that are like a mistyped one."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mmrl.app.export.export import whole_or_absent
from mmrl.app.files import replace_text
from mmrl.app.run.folder import RunDir, append_line
from mmrl.data.files.mp4 import write_mp4
from mmrl.data.files.paths import write_jsonl
from mmrl.engine.venv import Venv, note_whole
from mmrl.lab.arena.lane import Lane, Point
from mmrl.runtime import near as module
from mmrl.runtime.cache import keep
from mmrl.runtime.disk import FullDiskError, room_for
from mmrl.runtime.near import near

LIMIT = 20
"""Bytes that a file may have."""


@contextmanager
def no_room() -> Iterator[None]:
    """No file may be longer than LIMIT; Python ignores the signal that comes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def export(folder: Path, write: Callable[[Path], object]) -> None:
    with whole_or_absent(folder / "out") as partial:
        write(partial)


def weights(file: Path) -> None:
    save_file({"w": torch.zeros(4096)}, file)


WRITES: dict[str, Callable[[Path], object]] = {
    "replace_text": lambda folder: replace_text(folder / "a.txt", "x" * 100),
    "a line of metrics": lambda folder: append_line(folder / "metrics.jsonl", {"text": "x" * 100}),
    "a new run": lambda folder: RunDir.create(folder / "run"),
    "a point of the arena": lambda folder: Lane(folder, "grpo", 0).add(Point(1.0, 1, {"a": 1.0})),
    "rows": lambda folder: write_jsonl({folder / "rows.jsonl": [{"text": "x" * 100}]}),
    "a clip": lambda folder: write_mp4(folder / "a.mp4", np.zeros((4, 32, 32, 3), np.uint8), 4),
    "an export": lambda folder: export(folder, lambda out: weights(out / "model.safetensors")),
    "an export by torch": lambda folder: export(folder, lambda out: torch.save(torch.zeros(4096), out / "a.pt")),
    "the cache": lambda folder: keep(folder / "model", "", "config.json", lambda out: weights(out / "model.safetensors")),
    "an environment": lambda folder: note_whole(Venv(folder, "1", "cpu")),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_a_file_that_does_not_fit_is_named_and_nothing_is_left(tmp_path: Path, name: str):
    with no_room(), pytest.raises(FullDiskError) as caught:
        WRITES[name](tmp_path)
    text = str(caught.value)
    assert str(tmp_path) in text and "could not be written (" in text and " bytes are free there): make room there, then " in text
    left = [file.name for file in tmp_path.rglob("*") if file.is_file() and file.name != "metrics.jsonl"]
    assert left == []
    WRITES[name](tmp_path)


def test_the_innermost_file_and_the_outermost_way_to_go_on(tmp_path: Path):
    with pytest.raises(FullDiskError, match=r"inner could not be written .*: make room there, then go on$"):  # noqa: SIM117
        with room_for(tmp_path, "go on"), room_for(tmp_path / "inner"):
            raise OSError(28, os.strerror(28))


@pytest.mark.parametrize("error", [OSError(13, "Permission denied"), ValueError("odd"), KeyboardInterrupt()])
def test_other_errors_stay_what_they_are(tmp_path: Path, error: BaseException):
    with pytest.raises(type(error)) as caught, room_for(tmp_path):
        raise error
    assert caught.value is error


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("runs/model", "runs/other", "data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data" / "boxes.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("runs/mdl", " (near: runs/model)"),
        ("runs/MODEL", " (near: runs/model)"),
        ("./rns/model", " (near: runs/model)"),
        ("rns/nothing/of/it", " (near: runs)"),
        ("data/box.jsonl", " (near: data/boxes.jsonl)"),
        ("runs/zebra", ""),
        ("runs/model", ""),
        ("data/boxes.jsonl/inside", ""),
        ("{here}/runs/modle", " (near: {here}/runs/model)"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", ""),
        ("", ""),
    ],
)
def test_the_first_part_that_is_not_there_is_compared(here: Path, path: str, words: str):
    assert near(path.format(here=here)) == words.format(here=here)


@pytest.mark.usefixtures("here")
def test_a_folder_that_cannot_be_read_is_no_error_and_of_a_huge_one_only_some_entries_are_compared(monkeypatch):
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    for owner, name, value in ((Path, "iterdir", refuse), (module, "LOOKED_AT", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert near("runs/mdl") == "", name


def test_links_that_lead_nowhere_or_back_are_named(here: Path):
    (here / "loop").symlink_to("loop")
    (here / "gone").symlink_to("nothing")
    (here / "fine").symlink_to("runs")
    assert near("loop") == near("loop/model") == " (loop is a link to loop, and leads back to itself)"
    assert near("gone/model") == " (gone is a link to nothing, which is not there)"
    assert near("fine/mdl") == " (near: fine/model)" and near("fine/model") == ""
