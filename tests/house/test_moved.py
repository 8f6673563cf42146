"""Imports of modules by the names they had before they moved."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import mmrl
from mmrl.app.plugins.resolve import load
from mmrl.moved import MOVED, PACKAGES, OldNames


@pytest.mark.parametrize("old", sorted(set(MOVED) - set(PACKAGES)))
def test_an_old_name_says_the_new_one_which_is_there(old: str):
    with pytest.raises(ModuleNotFoundError, match=rf"^{old} is {MOVED[old]} now: change the import$"):
        import_module(old)
    assert find_spec(MOVED[old]) is not None


def test_names_taken_from_old_packages():
    for statement, old in (
        ("from mmrl.geometry.boxes import Box", "mmrl.geometry.boxes"),
        ("from mmrl.geometry import boxes", "mmrl.geometry.boxes"),
        ("from mmrl.geometry import Box", "mmrl.geometry"),
        ("from mmrl.policies import video_decode", "mmrl.policies.video_decode"),
        ("import mmrl.policies.families.qwen_vl", "mmrl.policies.families.qwen_vl"),
    ):
        with pytest.raises(ModuleNotFoundError, match=rf"{old} is {MOVED[old]} now"):
            exec(statement, {})


def test_names_that_never_were_are_not_found_as_ever():
    for name in ("mmrl.geometry.nothing", "mmrl.nothing", "mmrl.policies.nothing"):
        with pytest.raises(ModuleNotFoundError, match=rf"No module named '{name}'"):
            import_module(name)
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from mmrl.policies import nothing", {})


def test_it_is_asked_last_and_once():
    assert sys.meta_path.count(OldNames) == 1
    assert sys.meta_path[-1] is OldNames or sys.meta_path.index(OldNames) > 2
    assert mmrl.Box is import_module(MOVED["mmrl.geometry.boxes"]).Box


def test_a_plug_in_with_an_old_import_is_refused_with_the_new_one(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text("from mmrl.geometry.parsing import parse\n\ndef mine(group): ...\n")
    with pytest.raises(ValueError, match=r"mine\.py: mmrl\.geometry\.parsing is mmrl\.answers\.boxes\.parsing now"):
        load(str(file), "rewards")
