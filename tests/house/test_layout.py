"""The traps of folders called rewards/ and datasets/, and what must not stand in any file."""

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["rewards", "datasets", "tests/plugins"])
def test_plug_in_folders_are_no_packages(folder: str):
    assert not (ROOT / folder / "__init__.py").exists()


def test_datasets_is_the_hugging_face_package():
    spec = importlib.util.find_spec("datasets")
    assert spec is not None and spec.origin is not None
    assert not Path(spec.origin).is_relative_to(ROOT / "datasets")
    assert hasattr(importlib.import_module("datasets"), "load_dataset")


def test_constraints_are_names_and_versions():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.!+-]+", line)] == []


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["test"], *extras["demo"], *extras["report"], *extras["data"], *extras["rewards"]]
    names = {re.split(r"[\[<>=; ]", line, maxsplit=1)[0] for line in wanted} - {"mmrl"}
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {normal(name) for name in names} <= {normal(name) for name in pinned}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_ci_runs_the_tests_of_the_makefile():
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    assert "make test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("target", ["demo", "test", "check", "lint", "evidence", "bench"])
def test_make_targets_install_first(target: str):
    plan = subprocess.run(["make", "-n", "-B", target], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True).stdout
    assert plan.index("--constraint constraints.txt") < plan.index(
        ".venv/bin/" + ("ruff" if target in ("test", "check", "lint") else ""), plan.index("touch")
    )
