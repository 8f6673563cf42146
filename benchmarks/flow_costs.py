"""Time of a step of each flow method over that of Flow-GRPO, beside the same ratio of what the transformer was asked.

    python benchmarks/flow_costs.py

One Stable Diffusion 3 with random weights and LoRA, 16 pictures for each of 2 prompts, 8 denoising steps, no guidance, a reward
without cost; the methods take steps in turns, and memory is that of a process of each. A call is one latent through the
transformer; one with a gradient counts as many as its seconds, forward and backward, over those of one without, measured in
Flow-GRPO. If nothing but the transformer took time, both ratios would be the same. Seconds are CPU seconds of one thread, the
least of all steps of a method, which other work disturbs least.
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
from dataclasses import dataclass, field, replace
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
    parser.add_argument("--steps", type=int, default=4, help="timed steps of every method, in turns")
    parser.add_argument("--updates", type=int, default=0, help="updates per step; 0: as many as each preset takes")
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


@dataclass
class Run:
    """A method in training, and what its transformer was asked."""

    trainer: Any
    asked: Asked
    steps: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def step(self) -> None:
        """Take a training step, and note its seconds and calls."""
        self.asked.reset()
        start = time.process_time()
        self.trainer.step()
        seconds = time.process_time() - start
        self.steps.append({"seconds": seconds, "calls": self.asked.calls, "inside": self.asked.seconds})


def prepare(method: str, args: argparse.Namespace) -> Run:
    """The method's trainer with a policy of its own."""
    from mmrl.algorithms.presets import PRESETS
    from mmrl.algorithms.samplers.base import Shuffled
    from mmrl.app.plugins.resolve import load
    from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
    from mmrl.policies.shared.lora import LoraSettings
    from mmrl.training.optim import OptimizerSettings
    from mmrl.training.rewards.runner import NamedReward, RewardRunner
    from mmrl.training.settings import TrainSettings
    from mmrl.training.trainer import Trainer

    preset: Any = PRESETS[method]
    algorithm = replace(preset, group_size=GROUP, schedule=replace(preset.schedule, num_steps=STEPS, **METHODS[method]))
    if args.updates:
        algorithm = replace(algorithm, minibatches=args.updates)
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
    return Run(trainer, asked)


def measure_memory(args: argparse.Namespace) -> None:
    """Print the peak memory of a process that takes two steps of one method, in MB."""
    run = prepare(args.method, args)
    run.step()
    run.step()
    sys.stdout.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}\n")


def figures(runs: dict[str, Run], memory: dict[str, float]) -> dict[str, dict[str, float]]:
    """Method -> seconds, calls, and both over Flow-GRPO's; seconds are the least."""
    base = runs["flow_grpo"].steps
    each = [min(step["inside"][kind] / step["calls"][kind] for step in base) for kind in (0, 1)]
    weight, out = each[1] / each[0], dict[str, dict[str, float]]()
    for name, run in runs.items():
        best = min(run.steps, key=lambda step: step["seconds"])
        calls = statistics.median(step["calls"][0] + weight * step["calls"][1] for step in run.steps)
        out[name] = {
            "seconds": best["seconds"],
            "forward": best["calls"][0],
            "gradient": best["calls"][1],
            "calls": calls,
            "weight": weight,
            "inside": sum(best["inside"]) / best["seconds"],
            "forward_ms": 1000 * min(step["inside"][0] / step["calls"][0] for step in run.steps),
            "gradient_ms": 1000 * min(step["inside"][1] / step["calls"][1] for step in run.steps),
            "peak_mb": memory[name],
        }
    for one in out.values():
        one["time_ratio"] = one["seconds"] / out["flow_grpo"]["seconds"]
        one["call_ratio"] = one["calls"] / out["flow_grpo"]["calls"]
    return out


def table(found: dict[str, dict[str, float]]) -> list[str]:
    """Markdown: a row for every method."""
    lines = [
        "| method | CPU s/step | latents forward (ms each) | with gradient (ms each) | inside the transformer | "
        "time / Flow-GRPO | calls / Flow-GRPO | apart | peak MB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, one in found.items():
        time_ratio, call_ratio = one["time_ratio"], one["call_ratio"]
        lines.append(
            f"| {name} | {one['seconds']:.2f} | {one['forward']:.0f} ({one['forward_ms']:.2f}) | "
            f"{one['gradient']:.0f} ({one['gradient_ms']:.2f}) | {one['inside']:.3f} | "
            f"{time_ratio:.3f} | {call_ratio:.3f} | {time_ratio / call_ratio - 1:+.1%} | {one['peak_mb']:.0f} |"
        )
    weight = found["flow_grpo"]["weight"]
    return [*lines, "", f"A latent with a gradient takes {weight:.2f} times the seconds of one without."]


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    if args.method:
        measure_memory(args)
        return
    from flow_step import small_model

    args.model = small_model(Path(tempfile.mkdtemp()) / "model", args.layers, args.heads, args.patch)
    runs = {name: prepare(name, args) for name in METHODS}
    for i in range(WARM_UP + args.steps):
        for run in runs.values():
            if i == WARM_UP:
                run.steps.clear()
            run.step()
    words = [f"--model={args.model}", f"--rows={args.rows}", f"--updates={args.updates}"]
    memory = {name: float(output([sys.executable, __file__, f"--method={name}", *words])) for name in METHODS}
    found = figures(runs, memory)
    sys.stdout.write("\n".join(table(found)) + "\n")
    if args.json:
        args.json.write_text(json.dumps(found))


def output(command: Sequence[str]) -> str:
    """The last line that a command prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]


if __name__ == "__main__":
    main()
