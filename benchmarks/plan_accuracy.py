"""How near `mmrl plan` comes: predicted and measured bytes and seconds of tiny runs of text, clips and pictures.

    python benchmarks/plan_accuracy.py [--calibrate 3] [--steps 6] [--runs text clips pictures]

Predicted seconds come from the calibration, measured ones from steps taken afterwards by another build of the same run. On a
machine with a card the measured bytes are those of its allocator, on others those of the tensors of the largest phase.
"""

import argparse
from typing import Any

import torch

from mmrl.app.commands.plan import draw_up, timing
from mmrl.app.config import run as configs
from mmrl.app.run.build import build
from mmrl.policies.shared.dry_run import LiveBytes

RUNS = {
    "text": ("tiny/image", ["data.size=64"]),
    "clips": ("tiny/video", []),
    "pictures": ("tiny/flow", []),
}
QUICK = ["evaluation.num_prompts=0"]


def measured_bytes(trainer: Any) -> int:
    """Most bytes that live at a time inside an update."""
    method, peaks = trainer.update, [0]

    def update(batch: Any) -> Any:
        with LiveBytes() as live:
            out = method(batch)
        peaks[0] = max(peaks[0], live.peak)
        return out

    trainer.update = update
    trainer.step()
    return peaks[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calibrate", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--runs", nargs="*", default=list(RUNS), choices=RUNS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print("| run | bytes told | found | off | s/step told | found | off |\n|---|--:|--:|--:|--:|--:|--:|")
    for name in chosen.runs:
        config, words = RUNS[name]
        resolved = configs.load(config, [*words, *QUICK])
        memory, seconds = draw_up(resolved).memory, timing(resolved, chosen.calibrate).per_step()
        # Gradients are made inside of an update, and told among what stays.
        told = memory.phases["update"] + memory.stays["gradients"]
        trainer = build(resolved).trainer
        trainer.step()
        steps = [trainer.step()["time/step_s"] for _ in range(chosen.steps)]
        found, mean = measured_bytes(trainer), sum(steps) / len(steps)
        memory_off, time_off = told / found - 1, seconds / mean - 1
        print(f"| {name} | {told:,} | {found:,} | {memory_off:+.0%} | {seconds:.3f} | {mean:.3f} | {time_off:+.0%} |", flush=True)


if __name__ == "__main__":
    main()
