"""Two processes equal one: the same global batch gives the same rewards, metrics and weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.launcher import started

SCRIPT = """
import dataclasses, os, sys
import torch
torch.set_num_threads(1)
from accelerate import Accelerator
from mmrl.algorithms.planners.base import DynamicSampling
from mmrl.algorithms.presets.text import PRESETS
from mmrl.core.ranks import Ranks
from mmrl.training.optim import OptimizerSettings
from tests.support.fakes import FakeTextPolicy
from tests.support.trainers import make_trainer
from tests.training.test_trainer import half_dead, right_letter

dapo = PRESETS["dapo"]
cases = {
    "grpo": PRESETS["grpo"],
    "minibatches": dataclasses.replace(dapo, planner=PRESETS["grpo"].planner, epochs=2, minibatches=3),
    "dynamic": dataclasses.replace(dapo, planner=DynamicSampling(max_rounds=10)),
    "high_entropy": dataclasses.replace(PRESETS["high_entropy"], planner=PRESETS["grpo"].planner),
}
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == int(sys.argv[2])
ranks = Ranks(accelerator) if accelerator.num_processes > 1 else Ranks()
results = {}
for case, algorithm in cases.items():
    policy = FakeTextPolicy()
    policy.prepare(accelerator)
    function = half_dead if case == "dynamic" else right_letter
    optimizer = OptimizerSettings(kind="sgd", lr=0.5)
    trainer = make_trainer(algorithm, function=function, policy=policy, ranks=ranks, optimizer=optimizer)
    metrics = [trainer.step() for _ in range(4)]
    results[case] = {"metrics": metrics, "weights": torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])}
if ranks.is_main:
    torch.save(results, sys.argv[1])
ranks.close()
os._exit(0)  # gloo's threads sometimes abort the interpreter's own farewell on a busy machine
"""


def run(folder: Path, processes: int) -> dict[str, Any]:
    script, out = folder / "run.py", folder / f"{processes}.pt"
    script.write_text(SCRIPT)
    done = started(script, out, processes, processes=processes)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(out, weights_only=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    return run(folder, 1), run(folder, 2)


@pytest.mark.parametrize("case", ["grpo", "minibatches", "high_entropy"])
def test_two_processes_equal_one(results: tuple[dict[str, Any], dict[str, Any]], case: str):
    one, two = results[0][case], results[1][case]
    for step, (a, b) in enumerate(zip(one["metrics"], two["metrics"], strict=True)):
        expected = {
            name: pytest.approx(value, abs=2e-5, nan_ok=True) for name, value in a.items() if not name.startswith("time/")
        }
        assert {name: value for name, value in b.items() if not name.startswith("time/")} == expected, f"step {step}"
    torch.testing.assert_close(one["weights"], two["weights"], atol=1e-5, rtol=0)


def test_dynamic_sampling_on_two_processes_fills_every_step(results: tuple[dict[str, Any], dict[str, Any]]):
    for metrics in results[1]["dynamic"]["metrics"]:
        assert metrics["reward/no_spread"] == 0
        assert metrics["rollout/discarded"] % 8 == 0
