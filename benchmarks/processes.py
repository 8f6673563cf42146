"""Seconds of a step of mmrl in one process, in two as replicas (DDP) and in two with shards (FSDP2), on this machine's cores.

    python benchmarks/processes.py

The model and prompts of benchmarks/small_vlm.py, 4 prompts of 300 tokens x 8 samples a step, gradient checkpointing, one thread
per process; two processes share the prompts. Wall seconds, so an idle machine with two cores is needed: on a busy one the ratio
says nothing. The gradient's norm of the last step is printed because it must not depend on the number of processes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sides import markdown, write_json

KINDS = {"one": 1, "replicated": 2, "sharded": 2}
NAMES = {"one": "one process", "replicated": "two replicas (DDP)", "sharded": "two shards (FSDP2)"}
TORCHRUN = ["-m", "torch.distributed.run", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]


def worker(kind: Any, model: str, steps: int) -> None:
    """Take the steps as one of the processes; the first writes what it saw."""
    from small_vlm import Case, mmrl_trainer

    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from tests.support.launcher import accelerator_of

    accelerator = accelerator_of(kind)
    trainer = mmrl_trainer(Case(model, prompts=4, checkpointing=True), accelerator=accelerator)
    metrics = [trainer.step() for _ in range(1 + steps)]
    timed = {name: [step[f"time/{key}_s"] for step in metrics[1:]] for name, key in (("seconds", "step"), ("update", "update"))}
    if accelerator.is_main_process:
        print(json.dumps({**timed, "norm": metrics[0]["policy/grad_norm"]}), flush=True)
    # A process that leaves while another still waits takes it down.
    accelerator.wait_for_everyone()
    accelerator.end_training()


def run(kind: str, model: str, steps: int) -> dict[str, Any]:
    launch = [*TORCHRUN, "--nproc_per_node", str(KINDS[kind])] if KINDS[kind] > 1 else []
    command = [sys.executable, *launch, __file__, "--worker", kind, "--model", model, "--steps", str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{kind} failed:\n{done.stderr[-3000:]}")
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2, help="timed steps per launch")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.model, args.steps)
        return
    from small_vlm import build

    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        model = build(Path(folder) / "model")
        for _ in range(args.rounds):
            for kind in KINDS:
                found[kind].append(run(kind, model, args.steps))
    write_json(args.json, {"runs": found})
    alone = statistics.median(s for one in found["one"] for s in one["seconds"])
    rows = []
    for kind, runs in found.items():
        step, update = (statistics.median(s for one in runs for s in one[name]) for name in ("seconds", "update"))
        rows.append([NAMES[kind], f"{step:.2f}", f"{update:.2f}", f"{alone / step:.2f}", f"{runs[-1]['norm']:.6f}"])
    print(markdown(["processes", "s/step", "update s", "times as fast", "gradient norm of step 1"], rows))


if __name__ == "__main__":
    main()
