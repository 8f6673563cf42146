"""A step of an image generator that a process beside the trainer draws for, over one that the trainer draws itself.

    python benchmarks/samplers.py
    python benchmarks/samplers.py --window 2

A tiny Stable Diffusion 3 on the CPU, one thread for each process: runs of k = 0, and of k = 1 with one process, take turns.
`expected` is the slower side of k = 0: the larger of what its steps spent on sampling and rewards, and on the rest.
"""

import argparse
import os
import statistics
import time
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

from mmrl.app.config.run import load
from mmrl.app.run.build import build
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.write.generate import RemoteGenerator

WARM = 2
CONFIG = ["evaluation.num_prompts=0", "prompts_per_step=8", "algorithm.schedule.num_steps=10", "policy.lora.rank=4"]


@dataclass(frozen=True)
class Pace:
    """Mean seconds of a step, and of its sampling and rewards."""

    step: float
    sampled: float


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind")
    parser.add_argument("--window", type=int, default=0, help="denoising steps of the ten that train; 0: all")
    return parser.parse_args()


def run(ahead: int, steps: int, window: int) -> Pace:
    """The pace of the steps that are neither the first nor the last ones."""
    schedule = ['algorithm.schedule.kind="Window"', f"algorithm.schedule.size={window}", "algorithm.schedule.high=4"]
    words = [*CONFIG, *(schedule if window else []), f"steps={steps}", f"ahead={ahead}", f"cluster.samplers={ahead}"]
    job = build(load("tiny/flow", words))
    walls, sampled = list[float](), list[float]()
    for step in range(steps):
        begun = time.perf_counter()
        metrics = job.trainer.step()
        if WARM <= step < steps - ahead:
            walls.append(time.perf_counter() - begun)
            sampled.append(metrics.get("time/rollout_s", 0.0) + metrics.get("time/reward_s", 0.0))
    job.trainer.producer.close()
    assert isinstance(job.policy, FlowPolicy)
    if isinstance(job.policy.generator, RemoteGenerator):
        job.policy.generator.close()
    return Pace(statistics.mean(walls), statistics.mean(sampled))


def main() -> None:
    options = arguments()
    plain, beside = list[Pace](), list[Pace]()
    for _ in range(options.rounds):
        plain.append(run(0, options.steps, options.window))
        beside.append(run(1, options.steps, options.window))
    step = statistics.mean(one.step for one in plain)
    share = statistics.mean(one.sampled for one in plain) / step
    load_before = os.getloadavg()[2]
    print("| sampling and rewards / step, k = 0 | step of k = 1 / step of k = 0 | expected | load, 15 min |\n|--:|--:|--:|--:|")
    ratio = statistics.mean(one.step for one in beside) / step
    print(f"| {share:.2f} | {ratio:.2f} | {max(share, 1 - share):.2f} | {load_before:.1f} on {os.cpu_count()} cores |")


if __name__ == "__main__":
    main()
