"""Where a tiny step's time goes: the model (forward, backward, optimizer), the rest of the policy, data and rewards, the loop.

    OMP_NUM_THREADS=1 python benchmarks/overhead.py --steps 20

Everything is measured in one process, so shares do not depend on how busy the machine is. A tiny model makes the share of
everything else as large as it can be: in a real step the model's part is thousands of times longer, and the rest is the same.
"""

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from mmrl.app.config import run as configs
from mmrl.app.run.build import build
from mmrl.training.rewards.runner import Scoring

STEP = (
    "policy.model=tiny:qwen3_vl",
    "prompts_per_step=4",
    "algorithm.group_size=8",
    "algorithm.minibatches=1",
    "policy.sampling.max_new_tokens=16",
    "evaluation.num_prompts=0",
)
"""32 completions of 16 tokens, each prompt with a picture, a reference, one update."""
ROOMS = ("model", "policy", "data and rewards", "loop")


@dataclass
class Shares:
    """Seconds by room; time inside an inner room is not counted in an outer one."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROOMS, 0.0))
    stack: list[str] = field(default_factory=lambda: ["loop"])
    since: float = 0.0

    def switch(self, room: str | None) -> None:
        """Enter a room, or leave the present one."""
        now = time.perf_counter()
        self.seconds[self.stack[-1]] += now - self.since
        self.since = now
        if room is None:
            self.stack.pop()
        else:
            self.stack.append(room)

    def watch(self, owner: Any, name: str, room: str) -> None:
        """Count the calls of a method to a room."""
        inner: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.switch(room)
            try:
                return inner(*args, **kwargs)
            finally:
                self.switch(None)

        setattr(owner, name, counted)


def measure(steps: int, overrides: list[str]) -> dict[str, float]:
    """Share of the step by room, and milliseconds of a step."""
    trainer: Any = build(configs.load("tiny/image", [*STEP, f"steps={steps + 9}", *overrides])).trainer
    policy, shares = trainer.policy, Shares()
    for _ in range(4):
        trainer.step()
    heads: list[nn.Module] = [policy.net.core, policy.net.model.get_output_embeddings()]
    for owner, name in ((heads[0], "forward"), (heads[1], "forward"), (trainer.ranks, "backward"), (trainer.ranks, "step")):
        shares.watch(owner, name, "model")
    for name in ("rollout", "read", "split", "advance"):
        shares.watch(policy, name, "policy")
    shares.watch(trainer.sampler, "draw", "data and rewards")
    shares.watch(Scoring, "add", "data and rewards")
    shares.watch(Scoring, "tables", "data and rewards")
    start = shares.since = time.perf_counter()
    for _ in range(steps):
        trainer.step()
    shares.switch("loop")
    wall = time.perf_counter() - start
    return {room: shares.seconds[room] / wall for room in ROOMS} | {"ms per step": 1000 * wall / steps}


def main() -> None:
    parser = argparse.ArgumentParser(description="Shares of a tiny step.")
    parser.add_argument("--steps", type=int, default=20, help="steps that are measured, after four to warm up")
    parser.add_argument("overrides", nargs="*", help="settings of the config tiny/image, such as algorithm.group_size=4")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    found = measure(given.steps, given.overrides)
    print(json.dumps(found))
    print("\n| part of a step | share |\n|---|--:|")
    for room in ROOMS:
        print(f"| {room} | {found[room]:.1%} |")
    print(f"\n{found['ms per step']:.0f} ms a step, {given.steps} steps")


if __name__ == "__main__":
    main()
