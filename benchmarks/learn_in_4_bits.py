"""Do adapters beside weights in 4 bits learn as adapters beside the weights as they are?

    python benchmarks/learn_in_4_bits.py pairs.jsonl --tasks t2i grounding --seeds 0 1 2 3 4 5 6 7
    python benchmarks/learn_in_4_bits.py few.jsonl --seeds 0 --short          every part is a few steps long: does it run?

Both sides of a pair have the same model, seed, data and noise. Every finished run is a line of the file, and is not made again,
so that a command which was stopped goes on where it was. At the end: a table, and the 95 % interval of the mean difference.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from mmrl.lab import demos as demo

SEEDS = range(8)
T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""Number of pairs -> the 97.5 % quantile of Student's t."""
USUAL = ("evaluate_every=0", "save_every=0", "samples_every=0", "optimizer.lr_schedule=linear")
TASKS = {
    "t2i": ("eval/total", ("steps=40", "evaluation.num_samples=32")),
    "grounding": (
        "eval/iou",
        (
            *("steps=50", "prompts_per_step=16", "optimizer.lr=2e-3", "policy.lora={rank=32,alpha=64}"),
            *("data.num_distractors=0", "evaluation.data.num_distractors=0"),
            *("evaluation.num_prompts=512", "evaluation.data.size=512"),
        ),
    ),
}
"""Demo -> the number of held-out prompts that is compared, and what differs from the demo."""
FEW = {
    "t2i": ("steps=1", "evaluation.num_samples=1"),
    "grounding": ("steps=1", "prompts_per_step=2", "evaluation.num_prompts=4", "evaluation.data.size=4"),
}
"""Demo -> what is less in a run that only shows that all works."""
SIDES = {"float": (), "nf4": ("policy.weights=nf4",)}
Outcome = tuple[float, float]
"""A number before and after training."""
Key = tuple[str, int, str]
"""Task, seed and side."""


def outcome(task: str, folder: Path, seed: int, side: str, short: bool = False) -> Outcome:
    """The number before and after training the model that was taught with seed 0; `short`: as `demo.run` means it."""
    name, settings = TASKS[task]
    model = f"policy.model={str(demo.taught_model(task, 0, short))!r}"
    words = [*USUAL, *settings, *SIDES[side], model, *(FEW[task] if short else ())]
    run = demo.run(task, folder, seed, words, short)
    lines = [json.loads(line) for line in run.metrics_file.read_text(encoding="utf-8").splitlines()]
    found = [line[name] for line in lines if name in line]
    return found[0], found[-1]


def read(file: Path) -> dict[Key, Outcome]:
    """The runs in a file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines]
    return {(row["task"], row["seed"], row["side"]): (row["before"], row["after"]) for row in rows}


def collect(file: Path, tasks: Iterable[str], seeds: Iterable[int], short: bool = False) -> dict[Key, Outcome]:
    """All runs of these tasks and seeds: those in the file, and the others, which are written to it one by one."""
    found = read(file)
    for task, seed, side in [(task, seed, side) for seed in seeds for task in tasks for side in SIDES]:
        if (task, seed, side) in found:
            continue
        with TemporaryDirectory() as folder:
            before, after = outcome(task, Path(folder) / "run", seed, side, short)
        row = {"task": task, "seed": seed, "side": side, "before": before, "after": after}
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")
        found[task, seed, side] = before, after
    return found


def interval(differences: list[float]) -> Outcome:
    """The 95 % interval of the mean of paired differences."""
    half = T[len(differences)] * statistics.stdev(differences) / len(differences) ** 0.5
    mean = statistics.mean(differences)
    return mean - half, mean + half


def differences(found: Mapping[Key, Outcome], task: str) -> list[float]:
    """4 bits less float after training, of every seed that has both."""
    seeds = sorted({seed for own, seed, _ in found if own == task})
    both = [seed for seed in seeds if all((task, seed, side) in found for side in SIDES)]
    return [found[task, seed, "nf4"][1] - found[task, seed, "float"][1] for seed in both]


def table(found: Mapping[Key, Outcome], task: str) -> str:
    """A line per seed, then the interval."""
    lines = [f"| {task} | float | 4 bits | difference |", "|---|---|---|---|"]
    for seed in sorted({seed for own, seed, _ in found if own == task}):
        if all((task, seed, side) in found for side in SIDES):
            (low, plain), (start, small) = (found[task, seed, side] for side in SIDES)
            lines.append(f"| seed {seed} | {low:.3f} -> {plain:.3f} | {start:.3f} -> {small:.3f} | {small - plain:+.3f} |")
    if len(own := differences(found, task)) > 1:
        low, high = interval(own)
        lines.append(f"| mean, interval of 95 % | | | {statistics.mean(own):+.3f}, {low:+.3f} to {high:+.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS], default=[*TASKS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[*SEEDS])
    parser.add_argument("--short", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found = collect(chosen.file, chosen.tasks, chosen.seeds, chosen.short)
    print("\n\n".join(table(found, task) for task in chosen.tasks))


if __name__ == "__main__":
    main()
