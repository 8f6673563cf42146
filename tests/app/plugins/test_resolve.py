"""Plug-in files: where names are looked up, what a file must hold, and that listing imports nothing."""

import pickle
import sys
from pathlib import Path

import pytest

from mmrl.app.plugins.resolve import default_name, listing, load, locate, shipped_folder
from mmrl.runtime.near import nearest


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a folder for rewards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards").mkdir()
    return tmp_path


def test_a_bare_name_is_shipped():
    assert locate("iou", "rewards") == ((shipped_folder("rewards") / "iou.py").resolve(), "")


def test_the_working_directory_goes_before_the_shipped_set(desk: Path):
    (desk / "rewards" / "iou.py").write_text("def mine(group):\n    return [7.0]\n")
    assert load("iou", "rewards")(None) == [7.0]


def test_a_file_of_ones_own_relative_to_base(desk: Path):
    (desk / "deep").mkdir()
    (desk / "deep" / "mine.py").write_text("def one(group):\n    return [1.0]\n\ndef two(group):\n    return [2.0]\n")
    assert load("mine.py:two", "rewards", desk / "deep")(None) == [2.0]


def test_a_reward_model_that_is_not_there(desk: Path):
    with pytest.raises(FileNotFoundError, match="no folder of a trained reward model is at runs/rm"):
        locate("runs/rm", "rewards")


def test_two_public_callables_are_both_named(desk: Path):
    (desk / "mine.py").write_text("def one(group): ...\ndef two(group): ...\ndef _three(group): ...\n")
    with pytest.raises(ValueError, match=r"2 public callables \(one, two\).*\./mine\.py:one"):
        load("./mine.py", "rewards")


def test_all_chooses_among_public_callables(desk: Path):
    (desk / "mine.py").write_text('__all__ = ["two"]\ndef one(group): ...\ndef two(group):\n    return 2\n')
    assert load("./mine.py", "rewards")(None) == 2


def test_what_a_file_imports_is_not_its_own(desk: Path):
    (desk / "mine.py").write_text(
        "from math import floor\nfrom dataclasses import dataclass\n\ndef short(group):\n    return 1\n"
    )
    assert load("./mine.py", "rewards")(None) == 1


def test_postponed_annotations_and_pickling_work(desk: Path):
    imports = "from __future__ import annotations\nfrom dataclasses import dataclass\n\n"
    (desk / "rewards" / "mine.py").write_text(imports + "@dataclass(frozen=True)\nclass Mine:\n    x: int = 3\n")
    cls = load("mine", "rewards")
    assert cls.__module__ == "mmrl_plugin__rewards__mine"
    assert pickle.loads(pickle.dumps(cls(4))) == cls(4)  # noqa: S301 - our own bytes


def test_a_file_runs_once(desk: Path):
    (desk / "mine.py").write_text("def short(group): ...\n")
    assert load("./mine.py", "rewards") is load("mine.py:short", "rewards")


def test_same_stem_in_two_folders_are_two_modules(desk: Path):
    for folder, value in (("a", 1), ("b", 2)):
        (desk / folder).mkdir()
        (desk / folder / "mine.py").write_text(f"def short(group):\n    return {value}\n")
    assert [load(f"{folder}/mine.py", "rewards")(None) for folder in "ab"] == [1, 2]


def test_a_file_without_a_public_callable(desk: Path):
    (desk / "empty.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match="no public function or class"):
        load("./empty.py", "rewards")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def short(:\n", r"line 1 is not Python"),
        ("import no_such_package\n", "imports 'no_such_package', which is not installed"),
        ("import mmrl.elsewhere\n", "imports 'mmrl.elsewhere', which this mmrl does not have: it was moved or renamed"),
    ],
    ids=["syntax", "import", "module of mmrl"],
)
def test_a_file_that_fails_leaves_no_module(desk: Path, text: str, message: str):
    (desk / "rewards" / "bad.py").write_text(text)
    with pytest.raises(ValueError, match=message):
        load("bad", "rewards")
    assert "mmrl_plugin__rewards__bad" not in sys.modules


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"no reward is called 'iuo': did you mean 'iou'\?.*format"):
        load("iuo", "rewards")
    with pytest.raises(ValueError, match=r"has no callable 'Iuo': did you mean 'Iou'"):
        load("iou:Iuo", "rewards")
    assert nearest("learning_rate", ["lr", "lr_schedule", "kind"]) == "lr" and nearest("rate", ["lr"]) is None
    with pytest.raises(FileNotFoundError, match=r"nope\.py for the data set"):
        load("./nope.py", "datasets")


def test_listing_imports_nothing(desk: Path):
    (desk / "rewards" / "bomb.py").write_text('"""Says boom.\n\nMore."""\nraise SystemExit\n')
    (desk / "rewards" / "_private.py").write_text("")
    (desk / "rewards" / "odd.py").write_text("def (\n")
    found = {listed.name: listed.summary for listed in listing("rewards")}
    assert found["bomb"] == "Says boom."
    assert found["odd"].startswith("(not Python")
    assert "iou" in found
    assert "_private" not in found


@pytest.mark.parametrize(
    ("spec", "name"), [("iou", "iou"), ("./mine.py", "mine"), ("./mine.py:short", "short"), ("a/b.py:C", "C")]
)
def test_default_names(spec: str, name: str):
    assert default_name(spec) == name


def test_a_file_may_import_its_neighbours(desk: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (desk / "deep").mkdir()
    (desk / "deep" / "beside_it.py").write_text("def seven():\n    return 7\n")
    (desk / "deep" / "asks.py").write_text("from beside_it import seven\n\ndef asks(group):\n    return [seven()]\n")
    assert load("./deep/asks.py", "rewards")(None) == [7]
    del sys.modules["beside_it"]


@pytest.mark.parametrize("name", ["json", "colorsys"])
def test_a_neighbour_with_the_name_of_something_else_is_refused(name: str, desk: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (desk / f"{name}.py").write_text("")
    (desk / "asks.py").write_text(f"import {name}\n\ndef asks(group):\n    return [1.0]\n")
    with pytest.raises(ValueError, match=rf"asks\.py imports '{name}', which would be .*rename yours"):
        load("./asks.py", "rewards")
