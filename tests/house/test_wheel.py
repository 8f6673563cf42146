"""What people install: one top-level package, with plug-ins and configs inside it, that trains from an empty folder."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.wheel


def run(*words: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    # a checkout on PYTHONPATH would stand before the wheel
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "", **environment}
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=300, cwd=cwd, env=env, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commands of a fresh environment that holds the wheel and borrows everything else from this one."""
    home = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    run(sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def test_only_mmrl_is_at_the_top(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"mmrl"}
    assert not [name for name in names if "__pycache__" in name]
    assert "mmrl/py.typed" in names, "type checkers would take mmrl for untyped"
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_an_environment_of_vllm_can_be_made_from_it(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    engine = "mmrl/engine"
    wanted = ("requirements_cpu.txt", "requirements_cuda.txt", "worker/vllm_extension.py", "worker/torchvision_operators.py")
    assert {f"{engine}/{name}" for name in (*wanted, "worker/weight_group.py")} <= names


CONFIGS = [
    str(file.relative_to(ROOT / "configs").with_suffix(""))
    for file in (ROOT / "configs").rglob("*.toml")
    if not file.name.endswith(".recipe.toml")
]


@pytest.mark.parametrize("kind", ["rewards", "datasets", "environments", "configs"])
def test_everything_shipped_is_inside(wheel: Path, kind: str):
    suffix = ".toml" if kind == "configs" else ".py"
    here = {str(file.relative_to(ROOT)) for file in (ROOT / kind).rglob(f"*{suffix}")}
    names = zipfile.ZipFile(wheel).namelist()
    assert {
        name.removeprefix("mmrl/_shipped/")
        for name in names
        if name.startswith(f"mmrl/_shipped/{kind}/") and name.endswith(suffix)
    } == here


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("algorithms", ["grpo", "dapo", "tw_grpo", "flow_grpo"]),
        ("rewards", [file.stem for file in (ROOT / "rewards").glob("[!_]*.py")]),
        ("datasets", [file.stem for file in (ROOT / "datasets").glob("[!_]*.py")]),
        ("configs", CONFIGS),
    ],
)
def test_it_lists_everything_from_an_empty_folder(bin_folder: Path, tmp_path: Path, kind: str, names: list[str]):
    listed = run(bin_folder / "mmrl", "ls", kind, cwd=tmp_path)
    found = {line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "}
    assert names and set(names) <= found, set(names) - found


def test_it_shows_and_plans_from_an_empty_folder(bin_folder: Path, tmp_path: Path):
    shown = run(bin_folder / "mmrl", "show", "dapo", cwd=tmp_path)
    assert "arXiv:2503.14476" in shown and "mmrl/algorithms/planners/base.py:" in shown
    assert "algorithm.objective.0.high" in run(bin_folder / "mmrl", "show", "tiny/image", cwd=tmp_path)
    planned = run(bin_folder / "mmrl", "plan", "tiny/image", cwd=tmp_path, MMRL_CACHE=str(tmp_path / "cache"))
    assert "group size" in planned and "memory of a process" in planned


def test_it_trains_from_an_empty_folder_and_reports(bin_folder: Path, tmp_path: Path):
    place = run(bin_folder / "python", "-c", "import mmrl; print(mmrl.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(bin_folder.parent)
    cache = str(tmp_path / "cache")
    text = run(bin_folder / "mmrl", "train", "tiny/image", "steps=1", "output=run", cwd=tmp_path, MMRL_CACHE=cache)
    assert f"report: {tmp_path}/run/report.html" in text
    report = tmp_path / "run" / "report.html"
    assert report.stat().st_size > 10_000
    report.unlink()
    assert run(bin_folder / "mmrl", "report", "run", cwd=tmp_path).strip().endswith("report.html") and report.is_file()
