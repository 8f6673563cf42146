"""Adapters beside weights in 4 bits learn as adapters beside the weights as they are: eight paired seeds of two demos."""

import json
import statistics
from pathlib import Path

import pytest

from mmrl.app.commands import demo

SEEDS = range(8)
WORSE = 0.05
"""How much worse 4 bits may be on held-out prompts, at the lower end of the interval of 95 %."""
T_7 = 2.365
"""The 97.5 % quantile of Student's t for eight pairs."""
SHORT = ("evaluate_every=0", "save_every=0", "samples_every=0", "evaluation.num_prompts=256")
TASKS = {
    "grounding": (
        "eval/iou",
        (
            "steps=30",
            "prompts_per_step=16",
            "optimizer.lr=1e-3",
            "evaluation.data.size=256",
            "data.size=2048",
            "policy.lora.rank=32",
        ),
    ),
    "t2i": (
        "eval/total",
        ("steps=10", "prompts_per_step=12", "evaluation.num_prompts=64", "evaluation.num_samples=1", "policy.lora.rank=32"),
    ),
}
"""Demo -> the number of held-out prompts that is compared, and what is shorter than in the demo."""


def outcomes(task: str, folder: Path, seed: int, *words: str) -> tuple[float, float]:
    """The number before and after training the model that was taught with seed 0."""
    name, settings = TASKS[task]
    model = f"policy.model={str(demo.taught_model(task, 0, False))!r}"
    run = demo.run(task, folder, seed=seed, overrides=[*SHORT, *settings, *words, model])
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    found = [line[name] for line in lines if name in line]
    return found[0], found[-1]


def pair(task: str, folder: Path, seed: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Before and after, with the weights as they are and with those in 4 bits."""
    plain = outcomes(task, folder / f"float{seed}", seed)
    return plain, outcomes(task, folder / f"nf4_{seed}", seed, "policy.weights=nf4")


def interval(differences: list[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of eight paired differences."""
    half = T_7 * statistics.stdev(differences) / len(differences) ** 0.5
    mean = statistics.mean(differences)
    return mean - half, mean + half


@pytest.mark.evidence
@pytest.mark.parametrize("task", TASKS)
def test_adapters_beside_4_bits_learn_as_well(task: str, tmp_path: Path):
    pairs = [pair(task, tmp_path, seed) for seed in SEEDS]
    low, high = interval([small - plain for (_, plain), (_, small) in pairs])
    assert low > -WORSE, f"{task}: nf4 - float lies between {low:.3f} and {high:.3f}: {pairs}"
    assert statistics.mean(after - before for _, (before, after) in pairs) > 0


def test_the_interval_of_eight_differences():
    """Mean .01, deviation .02: half the width is 2.365 x .02 / sqrt(8) = .016723."""
    step = 0.02 * (7 / 8) ** 0.5
    found = interval([0.01 + step, 0.01 - step] * 4)
    assert found == pytest.approx((0.01 - 0.016723, 0.01 + 0.016723), abs=1e-6)
