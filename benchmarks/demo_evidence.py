"""The demo's claim on several seeds: held-out figures before and after GRPO, and a control that imitates for longer instead.

    python benchmarks/demo_evidence.py --seeds 0 1 2

Every seed has its own warm start, scenes and training. Both models are read greedily on held-out pictures that nothing was
chosen on (`--fresh`), with other glyphs than training saw. The table printed here stands in docs/benchmarks.md.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mmrl.app import demo
from mmrl.app.plugins import load
from mmrl.policies.text import Sampling, TextPolicy, TextPolicyConfig
from mmrl.tiny.grounding import WarmStart, warm_start
from mmrl.training.checkpoint import Checkpoints
from mmrl.training.evaluate import EvaluationSettings, Evaluator
from mmrl.training.rewards import NamedReward, RewardRunner

FIGURES = ("iou", "hit", "acc50")


def measure(policy: TextPolicy, num_prompts: int, seed: int) -> dict[str, float]:
    """Greedy figures on held-out scenes of one series."""
    prompts = load("digits_grounding", "datasets")(split="held_out", size=num_prompts, seed=seed)
    iou: Any = load("iou", "rewards")
    runner = RewardRunner([NamedReward("iou", iou(space=policy.box_space))])
    settings = EvaluationSettings(num_prompts=num_prompts, batch_size=64)
    metrics, _, _ = Evaluator(policy, prompts, runner, settings, Sampling(temperature=0.0, max_new_tokens=32)).run(0)
    return {name: metrics[f"eval/iou/{name}"] for name in FIGURES}


def policy_of(folder: Path) -> TextPolicy:
    return TextPolicy(TextPolicyConfig(model=str(folder)))


def row(name: str, before: dict[str, float], after: dict[str, float], seconds: str) -> str:
    cells = " | ".join(
        f"{before[figure]:.3f} -> {after[figure]:.3f} ({after[figure] - before[figure]:+.3f})" for figure in FIGURES
    )
    return f"| {name} | {cells} | {seconds} |"


def one_seed(seed: int, args: argparse.Namespace) -> list[str]:
    settings = WarmStart(seed=seed)
    start = time.perf_counter()
    imitated = warm_start(settings, Path(tempfile.mkdtemp()) / "model") if args.no_cache else demo.taught(seed)
    warm_s = time.perf_counter() - start
    before = measure(policy_of(imitated), args.fresh_size, args.fresh + seed)
    start = time.perf_counter()
    run = demo.grounding(Path(tempfile.mkdtemp()) / "run", seed, [f"policy.model={str(imitated)!r}", *args.overrides])
    grpo_s = time.perf_counter() - start
    policy = policy_of(imitated)
    policy.load_state_dict(Checkpoints(run.checkpoints).load()["policy"])
    lines = [
        row(f"GRPO, seed {seed}", before, measure(policy, args.fresh_size, args.fresh + seed), f"{warm_s:.0f} + {grpo_s:.0f}")
    ]
    if args.control:
        start = time.perf_counter()
        longer = replace(settings, steps=args.control)
        control = policy_of(warm_start(longer, Path(tempfile.mkdtemp()) / "model"))
        seconds = f"{time.perf_counter() - start:.0f}"
        lines.append(
            row(
                f"imitation only, {longer.steps} steps, seed {seed}",
                before,
                measure(control, args.fresh_size, args.fresh + seed),
                seconds,
            )
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--fresh", type=int, default=9_000, help="series of held-out scenes; the seed is added")
    parser.add_argument("--fresh-size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-cache", action="store_true", help="teach by imitation again, so that its seconds are real")
    parser.add_argument("--control", type=int, default=0, help="also imitate for so many steps instead of GRPO")
    parser.add_argument("overrides", nargs="*", help="key=value of configs/tiny/grounding.toml")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("| run | mean IoU | hits | Acc@0.5 | seconds |\n|---|---|---|---|---|", flush=True)
    for seed in args.seeds:
        for line in one_seed(seed, args):
            print(line, flush=True)


if __name__ == "__main__":
    main()
