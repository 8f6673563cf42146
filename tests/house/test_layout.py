"""The traps of folders called rewards/ and datasets/, pinned versions, and what the targets of the Makefile run."""

import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from tests.engine.__main__ import within

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["rewards", "datasets", "environments", "tests/plugins"])
def test_plug_in_folders_are_no_packages(folder: str):
    assert not (ROOT / folder / "__init__.py").exists()


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
def test_every_dependency_is_pinned_by_name_and_version(file: str):
    lines = (ROOT / file).read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.!+-]+", line)] == []
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


def test_without_packages_the_engines_target_says_so_and_runs_nothing(tmp_path: Path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    empty = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, "-m", "tests.engine", "--folder", str(tmp_path / "vllm")]
    done = subprocess.run(command, cwd=ROOT, env=kept | empty, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0
    assert "vLLM was not tested: " in done.stdout
    unfit = "GB of memory are free" in done.stdout or "the load is" in done.stdout
    assert unfit or ("see above" in done.stdout and "where pip looks" in done.stderr)


def test_what_takes_too_long_is_stopped_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch):
    killed, kill = list[int](), os.killpg
    monkeypatch.setattr(os, "killpg", lambda group, number: killed.append(group) or kill(group, number))
    assert within(1.0, ["sh", "-c", "sleep 600 & wait"], dict(os.environ)) is None
    until = time.monotonic() + 60
    while members(*killed) and time.monotonic() < until:
        time.sleep(0.05)
    assert not members(*killed)
    assert within(60.0, [sys.executable, "-c", "raise SystemExit(3)"], dict(os.environ)) == 3


def members(group: int) -> list[str]:
    """The processes of a group that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # state, parent and group stand behind the name
            state, _, of, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [folder.name] if int(of) == group and state != "Z" else []
    return found
