"""Rules that hold for every file in rewards/, datasets/ and examples/ that is a plug-in."""

import ast
import inspect
import os
import subprocess
import sys
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

import pytest

from mmrl.app.plugins.catalog import FIELDS, details
from mmrl.app.plugins.resolve import load
from tests.support.each import for_each

ROOT = Path(__file__).resolve().parents[2]
REWARDS, DATASETS = sorted(ROOT.glob("rewards/*.py")), sorted(ROOT.glob("datasets/*.py"))
FILES = REWARDS + DATASETS + sorted(ROOT.glob("environments/*.py"))
SHELVES = sorted(ROOT.glob("datasets/suites/*.py")) + sorted(ROOT.glob("environments/foreign/*.py"))
MAY_IMPORT = {"mmrl", "mmrl.core", "mmrl.runtime", "mmrl.answers", "mmrl.data", "mmrl.serving"}


@for_each("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_one_public_callable_and_a_summary(file):
    """`load` refuses a file with none or several."""
    assert callable(load(str(file), file.parent.name))
    summary = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n")[0]
    assert len(summary) > 20 and "licence" in (ast.get_docstring(ast.parse(file.read_text())) or "").lower()


@for_each("file", FILES + SHELVES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_plugins_are_short_and_import_public_rooms_only(file):
    tree = ast.parse(file.read_text())
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    rooms = {".".join(name.split(".")[:2]) for name in imported if name.split(".")[0] == "mmrl"}
    assert rooms <= MAY_IMPORT
    assert len(file.read_text().splitlines()) <= 150


@for_each("file", REWARDS, ids=lambda file: file.stem)
def test_rewards_say_what_they_need_and_give(file):
    said = details(file)
    assert tuple(said) == FIELDS, f"{file.name} lacks lines that start with {', '.join(set(FIELDS) - set(said))}"
    assert all(said.values())
    assert set(said["Modality"].split(", ")) <= {"text", "image", "video", "sound", "video with sound"}


@for_each("file", REWARDS, ids=lambda file: file.stem)
def test_rewards_are_frozen_or_functions(file):
    reward = load(str(file), "rewards")
    if inspect.isclass(reward):
        assert is_dataclass(reward) and vars(reward)["__dataclass_params__"].frozen
        assert list(inspect.signature(reward.__call__).parameters) == ["self", "group"]
        assert all((field.default, field.default_factory) != (MISSING, MISSING) for field in fields(reward))
    else:
        assert list(inspect.signature(reward).parameters) == ["group"]


@for_each("file", DATASETS, ids=lambda file: file.stem)
def test_data_sets_are_functions_called_load(file):
    assert load(str(file), "datasets").__name__ == "load"


def test_datasets_is_hugging_faces_even_here():
    """The folder datasets/ must not shadow the package, from the repository's root and with it on the path."""
    code = "import datasets; print(datasets.__file__); assert datasets.load_dataset"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "site-packages" in Path(found.stdout.strip()).parts
    assert Path(found.stdout.strip()).parent != ROOT / "datasets"


@pytest.mark.parametrize("name", ["my_reward", "my_dataset"])
def test_examples_are_short_and_found(name):
    """That they run is seen by tests/docs/test_examples.py."""
    file = ROOT / "examples" / f"{name}.py"
    assert len(file.read_text().splitlines()) <= 30
    assert callable(load(str(file), "rewards" if name == "my_reward" else "datasets"))
