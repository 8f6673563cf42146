"""Two processes under DeepSpeed's engine are one: ZeRO-2 and ZeRO-3, with gloo on CPUs. The first run compiles a helper of it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmrl.app.commands import train as jobs
from tests.processes.run_cases import Ran, distance, run_alone, trained
from tests.support.launcher import Kind, results

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install deepspeed")
pytestmark = pytest.mark.slow
RUNS: dict[Kind, tuple[str, ...]] = {
    "zero2": ("text", "flow", "probes", "lora", "short", "long"),
    "zero3": ("text", "unseeing", "probes", "lora", "flow", "flow_lora", "flow_short", "flow_long"),
}
"""The last case of each goes on with what one process did in the case before it."""
SGD = ("text", "unseeing", "flow", "probes", "lora")
EACH = [(kind, case) for kind, cases in RUNS.items() for case in cases]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_alone(tmp_path_factory.mktemp("one"), dict.fromkeys(case for _, case in EACH))


@pytest.fixture(scope="module")
def several(alone: Ran, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind], Ran]:
    made: dict[Kind, Ran] = {}

    def of(kind: Kind) -> Ran:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            *cases, begun, last = RUNS[kind]
            shutil.copytree(alone.folder / begun, folder / "begun")
            ran = results("tests.processes.run_cases", kind, folder, *cases, begun, f"{last}={folder / 'begun'}")
            made[kind] = Ran(folder, ran)
        return made[kind]

    return of


@pytest.mark.parametrize(("kind", "case"), EACH)
def test_two_processes_equal_one(alone: Ran, several: Callable[[Kind], Ran], kind: Kind, case: str):
    """probes mixes pictures and clips, so that the processes compute their gradients in different orders; see `cases.py`."""
    two = several(kind)
    one, first, second = (ran[case] for ran in (alone.ranks[0], *two.ranks))
    assert [first.get("shard"), second.get("shard")] == ([0.5, 0.5] if kind == "zero3" else [None, None])
    moved = distance(one["weights"], one["before"])
    assert moved > 1e-3
    assert distance(first["weights"], second["weights"]) == 0
    assert distance(first["weights"], one["weights"]) < (1e-5 if case in SGD else moved / 100)
    steps = len(two.rows(case))
    torch.testing.assert_close(two.rows(case), alone.rows(case)[-steps:], atol=0, rtol=0, equal_nan=True)
    if case != RUNS[kind][-1]:
        for a, b in zip(alone.metrics(case), two.metrics(case), strict=True):
            assert b == {name: pytest.approx(x, abs=2e-5, rel=1e-4, nan_ok=True) for name, x in a.items()}


@pytest.mark.parametrize(("kind", "case"), [("zero2", "lora"), ("zero3", "lora"), ("zero3", "flow_lora")])
def test_an_adapter_is_saved_whole(alone: Ran, several: Callable[[Kind], Ran], kind: Kind, case: str):
    one, two = (load_file(next((ran.folder / case / "saved").glob("*.safetensors"))) for ran in (alone, several(kind)))
    assert distance(one, two) < 4e-5
    assert max(float(x.abs().max()) for x in two.values()) > 1e-3


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_of_two_processes_is_continued_by_one(
    alone: Ran, several: Callable[[Kind], Ran], kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jobs, "announce", lambda run: None)
    *_, begun, case = RUNS[kind]
    shutil.copytree(several(kind).folder / begun, tmp_path / "begun")
    one, resumed = alone.ranks[0][case], trained(case, tmp_path / case, tmp_path / "begun")
    assert distance(resumed["weights"], one["weights"]) < distance(one["weights"], one["before"]) / 100
