"""The traps of folders called rewards/ and datasets/, and what must not stand in any file."""

import importlib.util
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["rewards", "datasets", "environments", "tests/plugins"])
def test_plug_in_folders_are_no_packages(folder: str):
    assert not (ROOT / folder / "__init__.py").exists()


def test_datasets_is_the_hugging_face_package():
    spec = importlib.util.find_spec("datasets")
    assert spec is not None and spec.origin is not None
    assert not Path(spec.origin).is_relative_to(ROOT / "datasets")
    assert hasattr(importlib.import_module("datasets"), "load_dataset")


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-lowest.txt"])
def test_constraints_are_names_and_versions(file: str):
    lines = (ROOT / file).read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.!+-]+", line)] == []


def wanted() -> dict[str, str]:
    """Name -> lowest version, of every direct dependency that make test installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"]]
    for extra in ("test", "demo", "report", "data", "rewards", "server"):
        lines += [line for line in extras[extra] if not line.startswith("mmrl[")]
    found = [re.match(r"([\w.-]+)(?:\[\w+\])?[>=]=([\w.]+)", line) for line in lines]
    assert None not in found, "a dependency without a lowest version"
    return {normal(match[1]): match[2] for match in found if match is not None}


def pinned(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    return {normal(name): version for name, _, version in (line.partition("==") for line in lines)}


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-lowest.txt"])
def test_every_dependency_is_pinned(file: str):
    assert wanted().keys() <= pinned(file).keys()


def test_the_lowest_versions_are_those_that_pyproject_allows():
    lowest = pinned("constraints-lowest.txt")
    higher = {name: lowest[name] for name, least in wanted().items() if not f"{lowest[name]}.".startswith(f"{least}.")}
    assert higher == {}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_ci_runs_the_tests_of_the_makefile():
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    words = (ROOT / ".ci" / "run").read_text()
    assert words.index("make -j3 test docs") < words.index("make engine-test")


def test_what_needs_vllm_runs_in_a_target_of_its_own():
    recipes = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("\t") and " -m " in line]
    chosen = [line for line in recipes if "not gpu" in line]
    assert len(chosen) == 2 and all("not engine" in line for line in chosen)
    assert "not engine" in (ROOT / "tests" / "changed.py").read_text()


@pytest.mark.parametrize("target", ["demo", "test", "engine-test", "check", "lint", "evidence", "bench"])
def test_make_targets_install_first(target: str):
    # not with what the make that runs this test was given
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "CONSTRAINTS", "PYTHON")}
    make = ["make", "-n", "-B", target]
    plan = subprocess.run(make, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment, check=True).stdout
    assert plan.index("--constraint constraints.txt") < plan.index(
        ".venv/bin/" + ("ruff" if target in ("test", "check", "lint") else ""), plan.index("touch")
    )
