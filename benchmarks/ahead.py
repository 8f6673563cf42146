"""A step's length with sampling ahead of training, over that of its slower side: what `ahead` saves, and what it costs.

    python benchmarks/ahead.py

mmrl's own trainer on a tiny fake policy, whose sampling and whose forwards with a gradient wait for a set time, as a host does
that waits for a card or a server. Runs with `ahead` = 0, 1 and 2 take turns in one process. The slower side is what sampler or
trainer was busy in the same run, mean over its steps but the first three.

With `--evaluations` the table says what an evaluation after every second step costs, over the length of its sampling, which is a
step's.
"""

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.training.evaluate import EvaluationSettings, Evaluator
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.trainer import Trainer
from tests.support import fakes
from tests.support.published import PublishingPolicy
from tests.support.trainers import make_trainer

PAIRS = ((1.0, 0.4), (0.7, 0.7), (0.4, 1.0))
WARM, PROMPTS = 3, 4


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each kind")
    parser.add_argument("--evaluations", action="store_true", help="measure what they cost, of each kind once")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all latencies")
    return parser.parse_args()


def latency(sample_s: float, update_s: float) -> Callable[[str], None]:
    """Waits for sampling, and for a forward with a gradient."""

    def wait(what: str) -> None:
        time.sleep(sample_s if what == "rollout" else update_s if torch.is_grad_enabled() else 0.0)

    return wait


def trainer_of(ahead: int, sample_s: float, update_s: float, steps: int) -> Trainer:
    algorithm = replace(PRESETS["grpo"], old="reread", importance=(RolloutCorrection(mode="token_truncate", high=2.0),))
    policy = PublishingPolicy(waits=latency(sample_s, update_s))
    held_out = RewardRunner([NamedReward("letter", fakes.right_letter)])
    evaluator = Evaluator(policy, fakes.prompts()[:PROMPTS], held_out, EvaluationSettings())
    more = {"audit_steps": 1, "audit_every": 0, "evaluator": evaluator}
    return make_trainer(algorithm, policy=policy, steps=steps, ahead=ahead, **more)


def run(ahead: int, sample_s: float, update_s: float, steps: int) -> tuple[float, float]:
    """Mean seconds of a step, and of the slower side's work in it."""
    trainer = trainer_of(ahead, sample_s, update_s, steps)
    walls, slower = list[float](), list[float]()
    for step in range(steps):
        begun = time.perf_counter()
        metrics = trainer.step()
        wall = time.perf_counter() - begun
        busy = wall * (1 - min(metrics.get("time/idle/trainer", 0.0), metrics.get("time/idle/sampler", 0.0)))
        # behind the last steps nothing is sampled any more
        if WARM <= step < steps - ahead:
            walls.append(wall)
            slower.append(busy)
    trainer.producer.close()
    return statistics.mean(walls), statistics.mean(slower)


def seconds(ahead: int, sample_s: float, update_s: float, steps: int, evaluates: bool) -> tuple[float, int]:
    """Of the steps but the first three and the last two, and the evaluations among them."""
    trainer, count, begun = trainer_of(ahead, sample_s, update_s, steps), 0, 0.0
    while trainer.index < steps - 2:
        trainer.step()
        begun = time.perf_counter() if trainer.index == WARM else begun
        if evaluates and trainer.index > WARM and trainer.index % 2 == 0 and trainer.index < steps - 2:
            trainer.evaluate()
            count += 1
    spent = time.perf_counter() - begun
    trainer.producer.close()
    return spent, count


def evaluations(options: argparse.Namespace) -> None:
    print("| sampling : update | ahead | an evaluation costs |\n|---|--:|--:|")
    for sample_s, update_s in PAIRS:
        for ahead in (0, 1, 2):
            words = ahead, options.scale * sample_s, options.scale * update_s, options.steps
            (plain, _), (longer, count) = seconds(*words, evaluates=False), seconds(*words, evaluates=True)
            print(f"| {sample_s:g} : {update_s:g} | {ahead} | {(longer - plain) / count / words[1]:.2f} |", flush=True)


def main() -> None:
    options = arguments()
    logging.getLogger("mmrl").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if options.evaluations:
        return evaluations(options)
    print("| sampling : update | ahead | step / (sampling + update) | step / slower side | saved |\n|---|--:|--:|--:|--:|")
    for sample_s, update_s in PAIRS:
        found: dict[int, list[tuple[float, float]]] = {0: [], 1: [], 2: []}
        for _ in range(options.rounds):
            for ahead, rows in found.items():
                rows.append(run(ahead, options.scale * sample_s, options.scale * update_s, options.steps))
        plain = statistics.mean(wall for wall, _ in found[0])
        for ahead, rows in found.items():
            wall, slower = (statistics.mean(row[i] for row in rows) for i in (0, 1))
            both = options.scale * (sample_s + update_s)
            side = "" if ahead == 0 else f"{wall / slower:.2f}"
            print(f"| {sample_s:g} : {update_s:g} | {ahead} | {wall / both:.2f} | {side} | {1 - wall / plain:.0%} |", flush=True)


if __name__ == "__main__":
    main()
