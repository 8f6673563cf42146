"""Paths that are like a mistyped one."""

from pathlib import Path

import pytest

from mmrl.runtime import near as module
from mmrl.runtime.near import near


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
        ("Qwen/Qwen2.5-VL-7B-Instruct", ""),
        ("", ""),
    ],
)
def test_the_first_part_that_is_not_there_is_compared(path: str, words: str):
    assert near(path) == words


def test_absolute_paths_stay_absolute(folder: Path):
    assert near(folder / "runs" / "modle") == f" (near: {folder}/runs/model)"


def test_a_folder_that_cannot_be_read_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert near("runs/mdl") == ""


def test_of_a_huge_folder_only_some_entries_are_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LOOKED_AT", 0)
    assert near("runs/mdl") == ""


def test_links_that_lead_nowhere_or_back_are_named(folder: Path):
    (folder / "loop").symlink_to("loop")
    (folder / "gone").symlink_to("nothing")
    (folder / "fine").symlink_to("runs")
    assert near("loop") == near("loop/model") == " (loop is a link to loop, and leads back to itself)"
    assert near("gone/model") == " (gone is a link to nothing, which is not there)"
    assert near("fine/mdl") == " (near: fine/model)" and near("fine/model") == ""
