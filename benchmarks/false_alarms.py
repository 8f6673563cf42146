"""How often clean runs raise an alarm, a warning, or stop at the ratio gate: short honest runs of every text preset.

    python benchmarks/false_alarms.py --seeds 5

The policy is the small one of the tests; rewards are honest, and the watched one is related to the trained one, or has nothing
to do with it, so every alarm here is false. Warnings are counted as well, but many of them are true: once all samples earn the
reward, groups have no spread.
"""

import argparse
import logging
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from mmrl.algorithms.presets import PRESETS
from mmrl.training.stopping import TrainingStoppedError
from tests.learning.test_alarm import HONEST, Case, train


def counts(case: Case, preset: str, seed: int, steps: int) -> Counter[str]:
    """The kinds of what one run said, each once."""
    try:
        health = train(replace(case, steps=steps), seed, preset).health
    except TrainingStoppedError as error:
        return Counter({"ratio gate" if "before the first update" in str(error) else "stopped": 1})
    return Counter({key.split("/")[0] for key in health.said})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--presets", nargs="*", default=sorted(PRESETS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("mmrl").setLevel(logging.CRITICAL)
    start, runs, found = time.process_time(), 0, Counter[str]()
    cases = list(HONEST.values())
    for number, preset in enumerate(args.presets):
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            case = cases[(number + seed) % len(cases)]
            said = counts(case, preset, seed, args.steps)
            if said.keys() & {"alarm", "ratio gate", "stopped"}:
                watched = case.watched.__name__ if case.watched else "nothing"
                print(f"{preset}, seed {seed}, {case.trained.__name__} watched by {watched}: {', '.join(said)}", flush=True)
            found += said
            runs += 1
    print(f"{runs} clean runs of {args.steps} steps, {len(args.presets)} presets, {time.process_time() - start:.0f} CPU seconds")
    for name in ("alarm", "ratio gate", "stopped"):
        print(f"{name}: {found.pop(name, 0)}")
    for name, count in sorted(found.items()):
        print(f"  warning {name}: {count}")


if __name__ == "__main__":
    main()
