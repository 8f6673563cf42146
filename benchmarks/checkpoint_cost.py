"""Cost of checkpoints: the share of the time of ten steps that one takes, written beside the run or while it waits.

`python benchmarks/checkpoint_cost.py` runs tiny/image and tiny/flow on a CPU. In every round ten steps are taken and then one
checkpoint; rounds of the three ways (none, beside, waiting) take turns, so that a busy machine slows all of them alike.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from mmrl.app.config import run as configs
from mmrl.app.run.build import build
from mmrl.core.ranks import Ranks
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.trainer import Trainer

STEPS = 10
KINDS = {"text": "tiny/image", "flow": "tiny/flow"}
WAYS = {"none": None, "beside": True, "waiting": False}


@dataclass
class Cost:
    """Seconds of every round of ten steps and, if any, one checkpoint."""

    wall: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])
    held_up: list[float] = field(default_factory=list[float])
    """Seconds by which the call of `save` kept the run from its next step, per round."""


def one_round(trainer: Trainer, checkpoints: Checkpoints | None, cost: Cost) -> None:
    """Take ten steps, then write a checkpoint; its write goes on beside the next round's steps, which belongs to its cost."""
    wall, cpu = time.perf_counter(), time.process_time()
    if checkpoints is not None:
        begun = time.perf_counter()
        checkpoints.save(trainer.index, trainer.state_dict(), Ranks())
        cost.held_up.append(time.perf_counter() - begun)
    for _ in range(STEPS):
        trainer.step()
    if checkpoints is not None:
        checkpoints.close()
    cost.wall.append(time.perf_counter() - wall)
    cost.cpu.append(time.process_time() - cpu)


def measure(name: str, rounds: int) -> dict[str, Cost]:
    trainer = build(configs.load(name, ["steps=100000", "optimizer.lr=1e-5"])).trainer
    trainer.step()
    costs = {way: Cost() for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        places = {
            way: None if asynchronous is None else Checkpoints(Path(folder) / way, asynchronous=asynchronous)
            for way, asynchronous in WAYS.items()
        }
        for _ in range(rounds):
            for way, checkpoints in places.items():
                one_round(trainer, checkpoints, costs[way])
        sizes = [file.stat().st_size for file in Path(folder).glob("beside/step-*/*")]
    print(f"{name}: a checkpoint has {sum(sizes) / max(1, len(sizes) // 4) / 1e6:.2f} MB", flush=True)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print("medians of rounds of 10 steps; shares are of the round without a checkpoint")
    for kind in chosen.kinds:
        costs = measure(KINDS[kind], chosen.rounds)
        base = costs["none"]
        for way, cost in costs.items():
            wall, cpu = (statistics.median(x) for x in (cost.wall, cost.cpu))
            held = statistics.median(cost.held_up) if cost.held_up else 0.0
            more = wall / statistics.median(base.wall) - 1, cpu / statistics.median(base.cpu) - 1
            print(
                f"{kind:5} {way:8} wall {wall:6.3f} s ({more[0]:+6.1%})  cpu {cpu:6.3f} s ({more[1]:+6.1%})  "
                f"run held up {held * 1000:6.1f} ms = {held / statistics.median(base.wall):5.2%} of ten steps",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
