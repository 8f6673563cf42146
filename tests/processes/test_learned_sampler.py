"""A sampler that learns, in two processes: it draws as one process does, remembers the same, and goes on exactly."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mmrl.app.commands import train as jobs
from mmrl.app.run.folder import RunDir
from mmrl.training.checkpoints.save import Checkpoints
from tests.processes.run_cases import Seen, trained
from tests.support.launcher import results

pytestmark = pytest.mark.slow


def memory(run: Path, step: int) -> dict[str, Any]:
    """The sampler's own part of a checkpoint."""
    return Checkpoints(RunDir.open(run).checkpoints).load(step)["sampler"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Seen]]:
    folder = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "announce", lambda run: None)
        return folder, {case: trained(case, folder / case) for case in ("bandit", "bandit_short")}


@pytest.fixture(scope="module")
def two(alone: tuple[Path, dict[str, Seen]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Seen]]]:
    folder = tmp_path_factory.mktemp("two")
    shutil.copytree(alone[0] / "bandit_short", folder / "begun")
    return folder, results("tests.processes.run_cases", "replicated", folder, "bandit", f"bandit={folder / 'begun'}")


def test_two_processes_draw_and_remember_as_one(alone: tuple[Path, dict[str, Seen]], two: tuple[Path, list[dict[str, Seen]]]):
    states = [memory(alone[0] / "bandit", step) for step in range(1, 5)]
    assert [memory(two[0] / "bandit", step) for step in range(1, 5)] == states
    assert states[0]["memory"] != states[-1]["memory"], "it has learned something"


def test_a_run_of_one_process_goes_on_in_two(alone: tuple[Path, dict[str, Seen]], two: tuple[Path, list[dict[str, Seen]]]):
    assert memory(two[0] / "begun", 4) == memory(alone[0] / "bandit", 4)
