"""What a lag costs in learning: two demos with `ahead = 1` beside the same with `ahead = 0`, over paired seeds.

    python benchmarks/ahead_learning.py

The demos' own configs and models, taught once, with fewer steps; with `ahead = 1` one real sampler works beside the trainer. A
row has the score of held-out prompts at the end of each run, and what the lag lost.
"""

import argparse
import logging
import os
import statistics
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from mmrl.app.config.run import load
from mmrl.app.run.build import build
from mmrl.lab.demos import taught_model
from mmrl.policies.shared.workers.remote import Remote


@dataclass(frozen=True)
class Task:
    """A demo, shorter."""

    config: str
    steps: int
    words: tuple[str, ...]


TASKS = {
    "grounding": Task("tiny/grounding", 60, ("prompts_per_step=16", "evaluation.num_prompts=128", "data.size=2048")),
    "t2i": Task("tiny/t2i", 30, ("prompts_per_step=3", "evaluation.num_samples=8")),
}


@dataclass(frozen=True)
class Outcome:
    """Of one run: the score of held-out prompts before and after."""

    before: float
    after: float


def run(task: Task, model: str, seed: int, ahead: int) -> Outcome:
    words = [f"steps={task.steps}", f"seed={seed}", f"data.seed={seed}", f"policy.model={model!r}", *task.words]
    words += ["evaluate_every=0", "samples_every=0", "save_every=0", f"ahead={ahead}", f"cluster.samplers={ahead}"]
    trainer = build(load(task.config, words)).trainer
    found = list[float]()
    trainer.callbacks.after_evaluation = lambda step, metrics, examples: found.append(metrics["eval/total"])
    trainer.fit()
    generator = getattr(trainer.policy, "generator", None)
    if isinstance(generator, Remote):
        generator.close()
    return Outcome(found[0], found[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--demos", nargs="+", choices=TASKS, default=list(TASKS))
    options = parser.parse_args()
    logging.getLogger("mmrl").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print("| demo | seed | before | ahead = 0 | ahead = 1 | lost |\n|---|--:|--:|--:|--:|--:|", flush=True)
    for name in options.demos:
        model, lost = str(taught_model(name, 0, False)), list[float]()
        for seed in options.seeds:
            plain, beside = (run(TASKS[name], model, seed, ahead) for ahead in (0, 1))
            lost.append(plain.after - beside.after)
            print(
                f"| {name} | {seed} | {plain.before:.3f} | {plain.after:.3f} | {beside.after:.3f} | {lost[-1]:+.3f} |", flush=True
            )
        print(f"| {name} | mean | | | | {statistics.mean(lost):+.3f} |", flush=True)


if __name__ == "__main__":
    main()
