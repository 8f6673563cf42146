"""Methods for video from the same small checkpoint, at the same learning rate, on the same clips: every run printed.

    python benchmarks/video_methods.py --seeds 0 1 2

The checkpoint is the one of `mmrl demo video`, taught anew per seed; data, rewards, optimizer, steps and samples per step are the
demo's for every method. Each runs as its preset has it, with three exceptions: plain grpo comes twice, as published (KL to the
reference, mean per rollout) and as tw_grpo without its weights (clip-higher, token mean, no KL), so that the weights alone
are told apart; and reg_grpo comes a second time with one update per step, where its regression is REINFORCE. Nothing was tuned
for anybody. Figures are greedy, on held-out clips that nothing was chosen on.
"""

import argparse
import statistics
import time
from typing import Any

import torch

from mmrl.app.config import run as configs
from mmrl.app.run.build import build
from mmrl.lab.demos import SEEDS, taught_model

METHODS: dict[str, dict[str, Any]] = {
    "grpo": {"preset": "grpo"},
    "tw_grpo, even weights": {"preset": "tw_grpo", "importance": []},
    "tw_grpo": {"preset": "tw_grpo"},
    "reg_grpo": {"preset": "reg_grpo"},
    "reg_grpo, one update": {"preset": "reg_grpo", "epochs": 1},
    "deepvideo_r1": {"preset": "deepvideo_r1"},
}
FIGURES = {"temporal IoU": "span", "R@0.3": "recall30", "R@0.5": "recall50", "R@0.7": "recall70", "letters right": "exact"}


def resolve_method(name: str, seed: int, args: argparse.Namespace) -> configs.Resolved:
    """The demo's config with its algorithm replaced."""
    table = configs.load("tiny/video").table
    table.set(("algorithm",), METHODS[name] | {"group_size": 8}, "benchmark")
    words = [f"{key}={seed}" for key in SEEDS[:2]] + [f"evaluation.data.seed={args.fresh + seed}"]
    words += [f"evaluation.data.size={args.fresh_size}", f"evaluation.num_prompts={args.fresh_size}", f"steps={args.steps}"]
    words += [f"optimizer.lr={args.lr}", f"policy.model={str(taught_model('video', seed))!r}"]
    return configs.resolve(table, words)


def run(name: str, seed: int, steps: int, args: argparse.Namespace) -> tuple[dict[str, float], float]:
    """Figures after so many steps, and the CPU seconds of the steps."""
    job = build(resolve_method(name, seed, args))
    assert job.evaluator is not None
    start = time.process_time()
    for _ in range(steps):
        job.trainer.step()
    seconds = time.process_time() - start
    return figures(job.evaluator.run(steps)[0]), seconds


def figures(metrics: dict[str, float]) -> dict[str, float]:
    return {title: metrics[f"eval/by_type/{part}"] for title, part in FIGURES.items()}


def row(name: str, seed: str, values: dict[str, float], seconds: str) -> str:
    return f"| {name} | {seed} | {' | '.join(f'{value:.3f}' for value in values.values())} | {seconds} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--fresh", type=int, default=9_000, help="series of held-out clips; the seed is added")
    parser.add_argument("--fresh-size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"| method | seed | {' | '.join(FIGURES)} | CPU s |\n|{'---|' * (len(FIGURES) + 3)}", flush=True)
    after: dict[str, list[dict[str, float]]] = {}
    for seed in args.seeds:
        print(row("start", str(seed), run(args.methods[0], seed, 0, args)[0], ""), flush=True)
        for name in args.methods:
            values, seconds = run(name, seed, args.steps, args)
            print(row(name, str(seed), values, f"{seconds:.0f}"), flush=True)
            after.setdefault(name, []).append(values)
    for name, runs in after.items():
        print(row(name, "mean", {title: statistics.mean(values[title] for values in runs) for title in FIGURES}, ""))


if __name__ == "__main__":
    main()
