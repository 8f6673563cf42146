"""CPU milliseconds of decoding one token where nothing but Python counts: a deep model of tiny width, with LoRA and without.

    python benchmarks/decode_step.py
    python benchmarks/decode_step.py --folder models/vlm-2 --kinds "lora, bfloat16" "lora, 4 bits"      of a model in a folder

A Qwen2.5-VL of 36 layers, 32 numbers wide, writes `--tokens` tokens of `--rows` completions of one prompt; figures are those of
the whole, reading the prompt included, divided by the tokens of one completion. Kernels are torch's operators, and looks are the
places where the host asks for a value, which on a GPU waits for all work before it (tests/support/devices.py counts them).
Once the generator looks every 16 tokens at which rows are done, as it does on a GPU, and once at every token; both take turns in
one process. With bfloat16 the model computes under autocast, as on a GPU; on a CPU that is slow for other reasons. In 4 bits it
computes in bfloat16 by equal kernels; fast ones are for a GPU, where benchmarks/gpu.py measures them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
KINDS = ("full", "lora", "lora, bfloat16", "lora, 4 bits")
USUAL = KINDS[:3]
REPEATS = 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="processes per kind")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(USUAL))
    parser.add_argument("--folder", type=Path, help="decode with this model instead, such as one of real_size.py")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--side", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    return parser.parse_args()


def deep_model(layers: int, folder: Path) -> str:
    """A tiny Qwen2.5-VL with so many layers."""
    from mmrl.lab.tiny import byte_tokens
    from mmrl.lab.tiny.text import vlms

    byte_tokens.TEXT["num_hidden_layers"] = layers
    return str(vlms.build("qwen2_5_vl", folder))


def side(args: argparse.Namespace) -> None:
    """Print milliseconds, kernels and looks of a token, for both ways of looking."""
    import torch

    from mmrl.core.types import Prompt
    from mmrl.policies.shared.lora import LoraSettings
    from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
    from mmrl.policies.text.write.generate import LOOK_EVERY, LocalGenerator

    torch.set_num_threads(1)
    dtype = "bfloat16" if "bits" in args.side or "bfloat16" in args.side else "float32"
    lora = LoraSettings(rank=4, alpha=8) if "lora" in args.side else None
    sampling = Sampling(max_new_tokens=args.tokens)
    weights = "nf4" if "bits" in args.side else "float"
    policy = TextPolicy(TextPolicyConfig(args.model, dtype=dtype, lora=lora, weights=weights, sampling=sampling))
    rows = list(range(args.rows))
    work = LocalGenerator(policy).generation(
        [policy.encode(Prompt("p", "what is it?"))], [0 for _ in rows], [(0, i) for i in rows], sampling
    )

    def write(every: int) -> int:
        """Draw the completions; how many tokens the longest has."""
        return policy.run(replace(work, look_every=every)).tokens.shape[1]

    found: dict[int, dict[str, Any]] = {every: {"ms": []} for every in (LOOK_EVERY, 1)}
    write(1)
    for _ in range(REPEATS):
        for every, figures in found.items():
            start = time.process_time()
            length = write(every)
            figures["ms"].append(1000 * (time.process_time() - start) / length)
    for every, figures in found.items():
        figures |= counts(partial(write, every))
    sys.stdout.write(json.dumps(found) + "\n")


def counts(write: Callable[[], int]) -> dict[str, float]:
    """Kernels and looks of a token, where `write()` answers how many tokens it wrote."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from tests.support.devices import host_looks

    class Kernels(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
            self.count += not func.is_view
            return func(*args, **(kwargs or {}))

    with Kernels() as kernels:
        length = write()
    with host_looks() as looks:
        write()
    return {"kernels": kernels.count / length, "looks": looks.total / length}


def main() -> None:
    args = arguments()
    if args.side:
        side(args)
        return
    model = deep_model(args.layers, Path(tempfile.mkdtemp()) / "model") if args.folder is None else str(args.folder.resolve())
    words = [f"--tokens={args.tokens}", f"--rows={args.rows}", f"--model={model}"]
    environment = os.environ | {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    found: dict[str, list[dict[str, dict[str, Any]]]] = {kind: [] for kind in args.kinds}
    for _ in range(args.rounds):
        for kind in args.kinds:
            command = [sys.executable, __file__, f"--side={kind}", *words]
            text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
            found[kind].append(json.loads(text.splitlines()[-1]))
    sys.stdout.write("\n".join(table(found)) + "\n")
    if args.json:
        args.json.write_text(json.dumps(found))


def table(found: dict[str, list[dict[str, dict[str, Any]]]]) -> list[str]:
    """Markdown: a row for every kind, both ways of looking beside each other."""
    ways = list(next(iter(found.values()))[0])
    told = {way: "at every token" if way == "1" else f"every {way} tokens" for way in ways}
    heads = [f"{what} a token, looking {told[way]}" for what in ("looks", "kernels", "ms") for way in ways]
    lines = ["| weights | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(heads)]
    for kind, runs in found.items():
        cells = [f"{runs[0][way]['looks']:.2f}" for way in ways] + [f"{runs[0][way]['kernels']:.0f}" for way in ways]
        cells += [f"{statistics.median(x for run in runs for x in run[way]['ms']):.1f}" for way in ways]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
