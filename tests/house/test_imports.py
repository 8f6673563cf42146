"""Imports that are allowed: `import mmrl` with torch alone, `--help` and `ls` without torch, plug-ins by nobody."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.each import for_each

ROOT = Path(__file__).parents[2]
HEAVY = [
    *("accelerate", "av", "datasets", "decord", "diffusers", "jinja2", "matplotlib", "open_clip", "peft", "pyarrow"),
    *("qwen_vl_utils", "sklearn", "tensorboard", "torchvision", "transformers", "wandb"),
]
PROGRAMS = Path(__file__).parent / "programs"
ROOMS = ["runtime", "core", "algorithms", "flow", "answers", "data", "policies", "training", "lab.tiny", "serving", "engine"]


def run(program: str, *words: str) -> str:
    command = [sys.executable, str(PROGRAMS / program), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def top_imports(file: Path) -> set[str]:
    """Top-level names of everything a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found


def test_public_names_and_every_module_of_the_rooms_import_without_the_heavy_packages():
    run("without_heavy.py", json.dumps(HEAVY), *ROOMS)


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["--version"], ["ls"], ["ls", "algorithms"]], ids=" ".join)
def test_looking_around_loads_no_torch(words: list[str]):
    assert run("look_around.py", json.dumps(["torch", "numpy", *HEAVY]), *words)


@for_each("file", sorted((ROOT / "mmrl" / "core").glob("*.py")), ids=lambda file: file.name)
def test_core_imports_torch_jaxtyping_and_the_standard_library(file: Path):
    assert top_imports(file) <= {*sys.stdlib_module_names, "torch", "jaxtyping", "mmrl"}


@for_each("folder", ["mmrl", "rewards", "datasets"])
def test_nobody_imports_plug_ins(folder: str):
    guilty = {str(file.relative_to(ROOT)): top_imports(file) & {"rewards", "datasets"} for file in (ROOT / folder).rglob("*.py")}
    assert {file: names for file, names in guilty.items() if names} == {}


@for_each("folder", ["rewards", "datasets", "environments"])
def test_plug_ins_use_public_rooms_only(folder: str):
    allowed = {"mmrl", "mmrl.core", "mmrl.runtime", "mmrl.answers", "mmrl.data", "mmrl.serving"}
    for file in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mmrl"):
                assert ".".join((node.module or "").split(".")[:2]) in allowed, f"{file.name} imports {node.module}"


COLLABORATORS = {"trainer", "collector", "evaluator", "reader", "gate", "audit"}


def set_from_outside(tree: ast.Module) -> list[str]:
    """Attributes of a trainer or its collaborators that an assignment changes, as they are written."""
    set_here = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return [ast.unparse(node) for node in set_here if COLLABORATORS & set(ast.unparse(node.value).split("."))]


def test_what_a_trainer_works_with_is_whole_when_it_is_built():
    outside = "trainer.collector.planner = 1\ncollector.next_group, x = 1, 2\nself.collector = x.trainer"
    assert set_from_outside(ast.parse(outside)) == ["trainer.collector.planner", "collector.next_group"]
    files = [file for room in ("app", "training") for file in (ROOT / "mmrl" / room).rglob("*.py")]
    assert {file.name: found for file in files if (found := set_from_outside(ast.parse(file.read_text())))} == {}
