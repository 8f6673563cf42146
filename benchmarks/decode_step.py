"""CPU milliseconds of decoding one token where nothing but Python counts: a deep model of tiny width, with LoRA and without.

    python benchmarks/decode_step.py --against ../mmrl-before

A Qwen2.5-VL of 36 layers, 32 numbers wide, writes `--tokens` tokens of `--rows` completions; what is timed is the whole of
`policy.rollout`, divided by the tokens of one completion, and kernels are torch's operators counted while it runs. `--against`
names another checkout of mmrl: both take turns, each in processes of its own, and ratios are those of one run. With bfloat16
the model computes under autocast, as on a GPU; on a CPU that is slow for other reasons, so look at its kernels.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
KINDS = ("full", "lora", "lora, bfloat16")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout, measured in turns with this one")
    parser.add_argument("--rounds", type=int, default=3, help="processes per checkout and kind")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--side", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    return parser.parse_args()


def deep_model(layers: int, folder: Path) -> str:
    """A tiny Qwen2.5-VL with so many layers."""
    from mmrl.tiny import byte_tokens, vlms

    byte_tokens.TEXT["num_hidden_layers"] = layers
    return str(vlms.build("qwen2_5_vl", folder))


def side(args: argparse.Namespace) -> None:
    """Print the milliseconds of a token, over the tokens of a completion, and torch's operators per token."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from mmrl.core.types import Prompt, Request
    from mmrl.policies.shared.lora import LoraSettings
    from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig

    class Kernels(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
            self.count += not func.is_view
            return func(*args, **(kwargs or {}))

    torch.set_num_threads(1)
    dtype = "bfloat16" if "bfloat16" in args.side else "float32"
    lora = LoraSettings(rank=4, alpha=8) if "lora" in args.side else None
    policy = TextPolicy(TextPolicyConfig(args.model, dtype=dtype, lora=lora, sampling=Sampling(max_new_tokens=args.tokens)))
    requests = [Request(Prompt("p", "what is it?"), args.rows, group_id=0, seed=0)]

    def write() -> float:
        start = time.process_time()
        rollouts = policy.rollout(requests)
        return 1000 * (time.process_time() - start) / rollouts.action_mask.shape[1]

    write()
    found = [write() for _ in range(3)]
    with Kernels() as kernels:
        length = policy.rollout(requests).action_mask.shape[1]
    sys.stdout.write(json.dumps({"ms": found, "kernels": kernels.count / length}) + "\n")


def main() -> None:
    args = arguments()
    if args.side:
        side(args)
        return
    model = deep_model(args.layers, Path(tempfile.mkdtemp()) / "model")
    checkouts = {"now": HERE} | ({"before": args.against.resolve()} if args.against else {})
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    words = [f"--tokens={args.tokens}", f"--rows={args.rows}", f"--model={model}"]
    for _ in range(args.rounds):
        for kind in args.kinds:
            for name, checkout in checkouts.items():
                command = [sys.executable, __file__, f"--side={kind}", *words]
                environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
                text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
                found.setdefault((kind, name), []).append(json.loads(text.splitlines()[-1]))
    figures = {
        kind: {name: (statistics.median(x for run in found[kind, name] for x in run["ms"]), found[kind, name][0]["kernels"])}
        for kind in args.kinds
        for name in checkouts
    }
    for kind in args.kinds:
        figures[kind] = {
            name: (statistics.median(x for run in found[kind, name] for x in run["ms"]), found[kind, name][0]["kernels"])
            for name in checkouts
        }
    sys.stdout.write("\n".join(table(figures)) + "\n")
    if args.json:
        args.json.write_text(json.dumps(figures))


def table(figures: dict[str, dict[str, tuple[float, float]]]) -> list[str]:
    """Markdown: a row for every kind, with its ratio where two checkouts were measured."""
    lines = [
        "| weights | ms a token | kernels a token | before: ms | before: kernels | before / now |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for kind, of in figures.items():
        ms, kernels = of["now"]
        before = of.get("before")
        rest = f"{before[0]:.1f} | {before[1]:.0f} | {before[0] / ms:.2f}" if before else "| | "
        lines.append(f"| {kind} | {ms:.1f} | {kernels:.0f} | {rest} |")
    return lines


if __name__ == "__main__":
    main()
