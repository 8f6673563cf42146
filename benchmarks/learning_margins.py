"""How far the presets' tests of learning stand above their bounds, over seeds:

    python benchmarks/learning_margins.py --seeds 5

One row per preset: bound, mean gain, its standard deviation, and how many deviations lie between the mean and the bound.
Exit code 1 where these are fewer than three.
"""

import argparse
import logging
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.flow import test_learning as flow
from tests.learning import test_presets_learn as text
from tests.support.presets import VIDEO
from tests.support.trainers import gain_of

LEAST = 3.0
"""Deviations between the mean gain and the bound."""


def margin(gains: Iterable[float], bound: float) -> tuple[float, float, float]:
    """Mean gain, its deviation over the seeds, and deviations above the bound."""
    found = list(gains)
    mean, deviation = statistics.mean(found), statistics.stdev(found)
    return mean, deviation, (mean - bound) / max(deviation, 1e-9)


def drawn_gain(name: str, seed: int) -> float:
    return gain_of(flow.trainer_of(name, seed), flow.num_steps(name), 5, "reward/total")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    logging.getLogger("mmrl").setLevel(logging.CRITICAL)
    sets: list[tuple[str, Iterable[str], Callable[[str, int], float], float]] = [
        ("text", text.PRESETS, text.gain, text.BOUND),
        ("video", VIDEO, text.gain, text.BOUND),
        ("flow", flow.PRESETS, drawn_gain, flow.BOUND),
    ]
    weak: list[str] = []
    print("| preset | bound | mean gain | deviation | deviations above the bound |\n|---|---|---|---|---|")
    for kind, names, gain, bound in sets:
        for name in sorted(names):
            mean, deviation, above = margin((gain(name, seed) for seed in range(chosen.seeds)), bound)
            print(f"| {kind}/{name} | {bound} | {mean:.3f} | {deviation:.3f} | {above:.1f} |", flush=True)
            weak += [name] if above < LEAST else []
    if weak:
        sys.exit(f"fewer than {LEAST:g} deviations above their bound: {', '.join(weak)}")


if __name__ == "__main__":
    main()
