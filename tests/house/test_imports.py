"""Imports that are allowed: `import mmrl` with torch alone, `--help` and `ls` without torch, plug-ins by nobody, no circles.

Readings that are known by name are defined where others import them from.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

import grimp
import pytest

import mmrl.core.readings as readings
from mmrl.core.types import Reading
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


COLLABORATORS = {"trainer", "collector", "producer", "evaluator", "reader", "gate", "audit"}


def set_from_outside(tree: ast.Module) -> list[str]:
    """Attributes of a trainer or its collaborators that an assignment changes, as they are written."""
    set_here = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return [ast.unparse(node) for node in set_here if COLLABORATORS & set(ast.unparse(node.value).split("."))]


def test_what_a_trainer_works_with_is_whole_when_it_is_built():
    outside = "trainer.collector.planner = 1\ncollector.next_group, x = 1, 2\nself.collector = x.trainer"
    assert set_from_outside(ast.parse(outside)) == ["trainer.collector.planner", "collector.next_group"]
    files = [file for room in ("app", "training") for file in (ROOT / "mmrl" / room).rglob("*.py")]
    assert {file.name: found for file in files if (found := set_from_outside(ast.parse(file.read_text())))} == {}


Imports = Mapping[str, Collection[str]]


@cache
def imports() -> dict[str, frozenset[str]]:
    """Module -> what it imports of mmrl, inside functions too; what stands under TYPE_CHECKING is left out."""
    graph = grimp.build_graph("mmrl", exclude_type_checking_imports=True, cache_dir=None)
    return {name: frozenset(graph.find_modules_directly_imported_by(name)) for name in graph.modules}


def circle(graph: Imports) -> list[str]:
    """One circle of imports, its first module again at the end; empty where there is none."""
    left = {name: set(below) for name, below in graph.items()}
    while done := {name for name, below in left.items() if not below & left.keys()}:
        left = {name: below for name, below in left.items() if name not in done}
    if not left:
        return []
    path = [min(left)]
    while path[-1] not in path[:-1]:
        path.append(min(left[path[-1]] & left.keys()))
    return path[path.index(path[-1]) :]


def folders(graph: Imports, room: str) -> dict[str, set[str]]:
    """Folder or file right inside a room -> those beside it that it imports."""
    inside = {name: name.removeprefix(f"{room}.").partition(".")[0] for name in graph if name.startswith(f"{room}.")}
    found: dict[str, set[str]] = {folder: set() for folder in inside.values()}
    for name, folder in inside.items():
        found[folder] |= {inside[other] for other in graph[name] if other in inside} - {folder}
    return found


def rooms(graph: Imports) -> list[str]:
    """Every package that holds packages, the whole of mmrl included."""
    packages = {name.rpartition(".")[0] for name in graph} - {""}
    return sorted({name.rpartition(".")[0] for name in packages} - {""})


def test_no_circle():
    found = circle(imports())
    assert not found, "a circle of imports: " + " -> ".join(found)


@for_each("room", rooms(imports()))
def test_no_circle_of_folders_inside_a_room(room: str):
    found = circle(folders(imports(), room))
    assert not found, f"a circle of folders in {room}: " + " -> ".join(found)


def test_a_circle_would_be_found():
    assert circle({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}) == ["a", "b", "c", "a"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_a_circle_of_folders_would_be_found():
    graph = {"m.a.x": {"m.b.y"}, "m.b.y": set(), "m.b.z": {"m.a.w"}, "m.a.w": set()}
    assert circle(graph) == []
    assert circle(folders(graph, "m")) == ["a", "b", "a"]


def constant_readings(source: str) -> list[int]:
    """Lines that call Reading with nothing but constants."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Reading"]
    values = [(call.lineno, [*call.args, *(keyword.value for keyword in call.keywords)]) for call in named]
    return [line for line, given in values if all(isinstance(value, ast.Constant) for value in given)]


def test_no_other_file_of_mmrl_spells_a_reading():
    files = {file: constant_readings(file.read_text()) for file in sorted((ROOT / "mmrl").rglob("*.py"))}
    found = {str(file.relative_to(ROOT)) for file, lines in files.items() if lines}
    assert found == {"mmrl/core/readings.py"}


def test_no_reading_has_two_names():
    known = [value for value in vars(readings).values() if isinstance(value, Reading)]
    assert len(known) == len(set(known)) > 10


def test_a_reading_with_a_view_of_its_own_is_no_constant():
    assert constant_readings('Reading("logprobs", view=view)\nReading("logprobs", "old")') == [2]
