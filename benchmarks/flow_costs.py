"""Time of a step of each flow method over that of Flow-GRPO, beside the same ratio of what the transformer was asked.

    python benchmarks/flow_costs.py

One Stable Diffusion 3 with random weights and LoRA, 16 pictures for each of 2 prompts, 8 denoising steps, no guidance, a reward
without cost; every method in a process of its own, in turns. A call is one latent through the transformer; one with a gradient
counts as many as its seconds, forward and backward, over those of one without, measured in Flow-GRPO's process. If nothing but
the transformer took time, both ratios would be the same. Seconds are CPU seconds of one thread.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

STEPS, GROUP, PROMPTS = 8, 16, 2
METHODS: dict[str, dict[str, Any]] = {
    "flow_grpo": {},
    "mix_grpo": {"size": 2, "dwell": 4, "share_prefix": True},
    "temp_flow_grpo": {"at_steps": (0, 1), "branches": 8},
    "branch_grpo": {"split_steps": (0, 1, 2, 3), "stop_depth": 4},
}
WARM_UP = 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="processes per method")
    parser.add_argument("--steps", type=int, default=2, help="timed steps per process")
    parser.add_argument("--layers", type=int, default=6, help="of the transformer")
    parser.add_argument("--heads", type=int, default=6, help="of the transformer, 32 numbers wide each")
    parser.add_argument("--patch", type=int, default=2, help="latents per token along a side; pictures have 64 latents")
    parser.add_argument("--rows", type=int, default=32, help="latents of a forward")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--method", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    return parser.parse_args()


class Asked:
    """Latents through a transformer and CPU seconds inside it, with a gradient and without."""

    def __init__(self, net: torch.nn.Module) -> None:
        self.calls, self.seconds = [0, 0], [0.0, 0.0]
        self.start = self.reached = 0.0
        net.register_forward_pre_hook(self.enter, with_kwargs=True)
        net.register_forward_hook(self.leave)

    def reset(self) -> None:
        self.calls, self.seconds = [0, 0], [0.0, 0.0]

    def enter(self, _: Any, __: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.calls[torch.is_grad_enabled()] += len(kwargs["hidden_states"])
        self.start = time.process_time()

    def leave(self, _: Any, __: Any, output: Any) -> None:
        self.seconds[torch.is_grad_enabled()] += time.process_time() - self.start
        if output[0].requires_grad:
            output[0].register_hook(self.reach)

    def reach(self, _: torch.Tensor) -> None:
        self.reached = time.process_time()

    def note_end(self) -> None:
        """Note that a backward is over."""
        self.seconds[1] += time.process_time() - self.reached


def parity(group: Any) -> list[float]:
    return [float(i % 2) for i in range(len(group.samples))]


def measure(args: argparse.Namespace) -> None:
    """Print the steps of one method."""
    from mmrl.algorithms.presets.flow import PRESETS
    from mmrl.algorithms.samplers.base import Shuffled
    from mmrl.app.plugins.resolve import load
    from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
    from mmrl.policies.shared.lora import LoraSettings
    from mmrl.training.optim import OptimizerSettings
    from mmrl.training.rewards import NamedReward, RewardRunner
    from mmrl.training.settings import TrainSettings
    from mmrl.training.trainer import Trainer

    torch.set_num_threads(1)
    preset: Any = PRESETS[args.method]
    algorithm = replace(preset, group_size=GROUP, schedule=replace(preset.schedule, num_steps=STEPS, **METHODS[args.method]))
    sizes = {"height": 32, "width": 32, "max_prompt_tokens": 0, "forward_rows": args.rows, "decode_rows": args.rows}
    config = FlowPolicyConfig(args.model, guidance=1.0, lora=LoraSettings(rank=8, alpha=16), **sizes)
    policy = FlowPolicy(config, sorted(algorithm.shadows))
    settings = TrainSettings(prompts_per_step=PROMPTS, micro_batch=args.rows, optimizer=OptimizerSettings(lr=1e-4))
    prompts = load("shapes", "datasets")()
    trainer = Trainer(policy, algorithm, Shuffled(prompts, seed=0), RewardRunner([NamedReward("parity", parity)]), settings)
    asked = Asked(policy.net.transformer)
    backward = trainer.ranks.backward

    def time_backward(loss: torch.Tensor, last: bool = True) -> None:
        backward(loss, last)
        asked.note_end()

    object.__setattr__(trainer.ranks, "backward", time_backward)
    steps: list[dict[str, Any]] = []
    for _ in range(WARM_UP + args.steps):
        asked.reset()
        start = time.process_time()
        trainer.step()
        steps.append({"seconds": time.process_time() - start, "calls": asked.calls, "inside": asked.seconds})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps({"steps": steps[WARM_UP:], "peak_mb": peak}) + "\n")


def figures(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Method -> seconds, calls, and both over Flow-GRPO's; medians."""
    steps = {name: [step for run in found for step in run["steps"]] for name, found in runs.items()}
    base = steps["flow_grpo"]
    each = [statistics.median(step["inside"][kind] / step["calls"][kind] for step in base) for kind in (0, 1)]
    weight, out = each[1] / each[0], dict[str, dict[str, float]]()
    for name, own in steps.items():
        seconds = statistics.median(step["seconds"] for step in own)
        calls = statistics.median(step["calls"][0] + weight * step["calls"][1] for step in own)
        out[name] = {
            "seconds": seconds,
            "forward": own[0]["calls"][0],
            "gradient": own[0]["calls"][1],
            "calls": calls,
            "weight": weight,
            "inside": statistics.median(sum(step["inside"]) / step["seconds"] for step in own),
            "peak_mb": statistics.median(run["peak_mb"] for run in runs[name]),
        }
    for one in out.values():
        one["time_ratio"] = one["seconds"] / out["flow_grpo"]["seconds"]
        one["call_ratio"] = one["calls"] / out["flow_grpo"]["calls"]
    return out


def table(found: dict[str, dict[str, float]]) -> list[str]:
    """Markdown: a row for every method."""
    lines = [
        "| method | CPU s/step | latents forward | latents with gradient | inside the transformer | time / Flow-GRPO | "
        "calls / Flow-GRPO | apart | peak MB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, one in found.items():
        time_ratio, call_ratio = one["time_ratio"], one["call_ratio"]
        lines.append(
            f"| {name} | {one['seconds']:.2f} | {one['forward']:.0f} | {one['gradient']:.0f} | {one['inside']:.3f} | "
            f"{time_ratio:.3f} | {call_ratio:.3f} | {time_ratio / call_ratio - 1:+.1%} | {one['peak_mb']:.0f} |"
        )
    weight = found["flow_grpo"]["weight"]
    return [*lines, "", f"A latent with a gradient takes {weight:.2f} times the seconds of one without."]


def main() -> None:
    args = arguments()
    if args.method:
        measure(args)
        return
    from flow_step import small_model

    model = args.model or small_model(Path(tempfile.mkdtemp()) / "model", args.layers, args.heads, args.patch)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    for _ in range(args.rounds):
        for name in METHODS:
            words = [f"--method={name}", f"--model={model}", f"--steps={args.steps}", f"--rows={args.rows}"]
            text = subprocess.run([sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True).stdout
            runs[name].append(json.loads(text.splitlines()[-1]))
    found = figures(runs)
    sys.stdout.write("\n".join(table(found)) + "\n")
    if args.json:
        args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
