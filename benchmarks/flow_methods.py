"""Every flow method from the same small checkpoint, for the same seconds and the same model calls: what does a second buy?

    python benchmarks/flow_methods.py --seconds 40 --seeds 0 1 2 --plot docs/flow_methods.svg

The checkpoint is the one of `mmrl demo t2i`; data, reward, LoRA, optimizer, learning rate and pictures per step are the same for
all methods, and so are 6 denoising steps, no guidance and (where the method leaves the choice) noise shared in a group. Clip
ranges are a hundred times the presets', as latents of 256 elements want. Nothing else was tuned for anybody. A model call is one
latent through the transformer; with gradient it counts three. Seconds are CPU seconds of one thread. The held-out reward is of
deterministic pictures, 12 captions with 16 pictures each; evaluation is in neither count.
"""

import argparse
import json
import statistics
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mmrl.app.config import run as configs
from mmrl.app.run.build import build
from mmrl.lab.demos import taught_model

WIDE = {"low": 1e-2, "high": 1e-2}
WIDE_NORMALIZED = {"low": 2e-4, "high": 2e-4}
EVEN = {"kind": "LinearShift", "shift": 1.0}
METHODS: dict[str, dict[str, Any]] = {
    "flow_grpo": {"schedule": {"initial_noise": "group"}, "objective": {"0": WIDE}},
    "flow_grpo_fast": {
        "schedule": {"size": 2, "high": 4, "initial_noise": "group", "share_prefix": True},
        "objective": {"0": WIDE},
    },
    "cps": {"schedule": {"initial_noise": "group"}, "objective": {"0": WIDE}},
    "grpo_guard": {"schedule": {"initial_noise": "group"}, "objective": {"0": WIDE_NORMALIZED}},
    "mix_grpo": {"schedule": {"size": 2, "dwell": 4, "share_prefix": True}, "objective": {"0": WIDE}},
    "mix_grpo_flash": {"schedule": {"size": 2, "dwell": 4, "share_prefix": True}, "objective": {"0": WIDE}},
    "temp_flow_grpo": {"schedule": {"at_steps": [0, 1], "branches": 8}, "objective": {"0": WIDE}},
    "dance_grpo": {"schedule": {"trained_per_row": 3}, "objective": {"0": WIDE}},
    "branch_grpo": {"schedule": {"split_steps": [0, 1, 2, 3], "stop_depth": 4}, "objective": {"0": WIDE}},
    "branch_mix_grpo": {
        "schedule": {"split_steps": [0, 1, 2, 3], "stop_depth": 4, "window": [0, 2], "window_every": 4},
        "objective": {"0": WIDE},
    },
    "diffusion_nft": {"schedule": {"times": {"count": 5}}},
    "awm": {"schedule": {"times": {"count": 5}}},
}
GROUP, PROMPTS, STEPS = 16, 12, 6


class Calls:
    """A count of latents through a transformer; with gradient three each."""

    def __init__(self, net: torch.nn.Module) -> None:
        self.count = 0
        net.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, _: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        latents: Any = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        self.count += len(latents) * (3 if torch.is_grad_enabled() else 1)


def overrides(name: str, seed: int, lr: float) -> list[str]:
    """Command-line words that make the demo's config one of this method."""
    words = [f"seed={seed}", f"data.seed={seed}", "steps=100000", f"prompts_per_step={PROMPTS}", f"optimizer.lr={lr}"]
    words += ["optimizer.lr_schedule='constant'", "samples_every=0", "evaluation.num_samples=16"]
    return [*words, f"policy.model={str(taught_model('t2i', 0))!r}"]


def resolve_method(name: str, seed: int, lr: float) -> configs.Resolved:
    """The demo's config with its algorithm replaced."""
    table = configs.load("tiny/t2i").table
    schedule = {"num_steps": STEPS, "spacing": EVEN} | METHODS[name].get("schedule", {})
    algorithm: dict[str, Any] = {"preset": name, "group_size": GROUP, "schedule": schedule}
    if "objective" in METHODS[name]:
        algorithm["objective"] = METHODS[name]["objective"]
    table.set(("algorithm",), algorithm, "benchmark")
    return configs.resolve(table, overrides(name, seed, lr))


def curve(name: str, seed: int, args: argparse.Namespace) -> list[tuple[float, int, float]]:
    """(CPU seconds of training, model calls, held-out reward), measured every few seconds."""
    job = build(resolve_method(name, seed, args.lr))
    policy: Any = job.policy
    calls = Calls(policy.net.transformer)
    assert job.evaluator is not None
    points = [(0.0, 0, job.evaluator.run(0)[0]["eval/total"])]
    seconds, calls.count, due = 0.0, 0, args.every
    while seconds < args.seconds:
        before, start = calls.count, time.process_time()
        job.trainer.step()
        seconds += time.process_time() - start
        if seconds >= min(due, args.seconds):
            due, spent = due + args.every, calls.count
            points.append((seconds, spent, job.evaluator.run(0)[0]["eval/total"]))
            calls.count = spent
        assert calls.count > before
    return points


def at(points: Sequence[tuple[float, int, float]], place: int, x: float) -> float:
    """The reward at so many seconds (place 0) or calls (place 1), between the measured points."""
    i = min(max(bisect_left([p[place] for p in points], x), 1), len(points) - 1)
    (x0, y0), (x1, y1) = ((points[j][place], points[j][2]) for j in (i - 1, i))
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def table(curves: dict[str, list[list[tuple[float, int, float]]]], seconds: float) -> list[str]:
    """One line per method, best per second first."""
    budget = min(points[-1][1] for runs in curves.values() for points in runs)
    lines = [
        f"| method | before | after {seconds:.0f} s | gain in 10 s | after {budget:,} calls | gain in 10,000 calls | calls / s |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = []
    for name, runs in curves.items():
        start = [points[0][2] for points in runs]
        by_time, by_calls = [at(p, 0, seconds) for p in runs], [at(p, 1, budget) for p in runs]
        per_second = statistics.mean(b - a for a, b in zip(start, by_time, strict=True)) / seconds * 10
        per_call = statistics.mean(b - a for a, b in zip(start, by_calls, strict=True)) / budget * 10_000
        rate = statistics.mean(points[-1][1] / points[-1][0] for points in runs)
        cells = (spread(start), spread(by_time), f"{per_second:+.3f}", spread(by_calls), f"{per_call:+.4f}", f"{rate:,.0f}")
        rows.append((per_second, f"| {name} | " + " | ".join(cells) + " |"))
    return lines + [line for _, line in sorted(rows, reverse=True)]


def spread(values: Sequence[float]) -> str:
    low_high = f" ({min(values):.2f}-{max(values):.2f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{low_high}"


def plot(curves: dict[str, list[list[tuple[float, int, float]]]], file: Path) -> None:
    """Mean held-out reward over seconds and over calls."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    colours = pyplot.get_cmap("tab20")(range(len(curves)))
    for place, (axis, label) in enumerate(zip(axes, ("CPU seconds of training", "model calls"), strict=True)):
        for (name, runs), colour in zip(curves.items(), colours, strict=True):
            most = min(points[-1][place] for points in runs)
            xs = [most * i / 20 for i in range(21)]
            axis.plot(xs, [statistics.mean(at(p, place, x) for p in runs) for x in xs], label=name, color=colour)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("held-out reward, mean over seeds")
    axes[1].legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0, help="CPU seconds of training per run")
    parser.add_argument("--every", type=float, default=8.0, help="seconds of training between evaluations")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--curves", type=Path, help="JSON file: keep the curves, and add to those that are there")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kept = json.loads(args.curves.read_text()) if args.curves and args.curves.exists() else {}
    curves: dict[str, list[list[tuple[float, int, float]]]] = defaultdict(list, kept)
    for seed in args.seeds:
        for name in args.methods:
            points = curve(name, seed, args)
            curves[name].append(points)
            print(f"{name} seed {seed}: {points[0][2]:.3f} -> {points[-1][2]:.3f}, {points[-1][1]} calls", flush=True)
            if args.curves:
                args.curves.write_text(json.dumps(curves))
    print("\n".join(table(curves, args.seconds)))
    if args.plot:
        plot(curves, args.plot)


if __name__ == "__main__":
    main()
