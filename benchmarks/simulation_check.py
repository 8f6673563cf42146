"""Seconds of a step as `simulate_cluster.py` says, beside those of mmrl's own loop.

    python benchmarks/simulation_check.py

First mmrl's trainer, producer and crew of samplers with a fake policy, whose samplers and updates sleep, so that load hardly
matters; then a tiny Stable Diffusion 3 with one real sampler, one thread for each process, where nothing else may run. Each time
the spans of a run with one sampler and `ahead = 0` say what a step takes with other samplers and ahead of training.
"""

import argparse
import logging
import os
import statistics
import tempfile
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from simulate_cluster import Layout, Work, named, read_steps, seconds_of

from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.app.config.run import load
from mmrl.app.run.build import build
from mmrl.app.run.folder import RunDir
from mmrl.app.run.trackers import StepSpans
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.write.generate import RemoteGenerator
from mmrl.policies.shared.workers.crew import Crew, Restarts
from mmrl.runtime.spans import span
from mmrl.training.trainer import Trainer
from tests.support.published import PublishingPolicy
from tests.support.trainers import make_trainer

WARM = 3
ALONE = Layout(1, 1, 0)
CHUNKS = 6
FAKES = ((0.1, 0.6), (0.15, 0.3))
"""Seconds that a chunk is drawn, and those of an update."""
CONFIG = ["evaluation.num_prompts=0", "prompts_per_step=8", "algorithm.schedule.num_steps=10", "policy.lora.rank=4"]
CORRECTION = RolloutCorrection(mode="token_truncate", high=2.0)


class Asleep:
    """A sampler that sleeps for each chunk."""

    def __call__(self, *job: object) -> object:
        (seconds,) = job
        assert isinstance(seconds, float)
        time.sleep(seconds)
        return seconds

    def give_up(self) -> None:
        """It ends by itself."""

    def close(self) -> None:
        """Likewise."""


def watched(trainer: Trainer, folder: Path, steps: int, ahead: int) -> tuple[Path, float]:
    """Train; where the spans of the steps are, and the mean seconds of those in the middle."""
    folder.mkdir()
    listener, walls = StepSpans(RunDir(folder)), list[float]()
    for step in range(steps):
        begun = time.perf_counter()
        metrics = trainer.step()
        listener.after_step(step + 1, metrics, None)
        # behind the last steps nothing is sampled any more
        if WARM <= step < steps - ahead:
            walls.append(time.perf_counter() - begun)
    trainer.producer.close()
    return folder / "spans.jsonl", statistics.mean(walls)


def fake_run(folder: Path, latencies: tuple[float, float], layout: Layout, steps: int) -> tuple[tuple[Work, ...], float]:
    """What steps are made of, and the seconds of one, where samplers and updates sleep."""
    chunk_s, update_s = latencies
    crew = Crew([Asleep() for _ in range(layout.samplers)], Restarts(0))

    def wait(what: str) -> None:
        if what == "rollout":
            with span("generate"):
                crew.ask([(chunk_s,)] * CHUNKS)
        elif torch.is_grad_enabled():
            time.sleep(update_s)

    algorithm = replace(PRESETS["grpo"], old="reread", importance=(CORRECTION,))
    policy = PublishingPolicy(waits=wait)
    trainer = make_trainer(algorithm, policy=policy, steps=steps, ahead=layout.ahead, audit_steps=1, audit_every=0)
    file, seconds = watched(trainer, folder, steps, layout.ahead)
    crew.close()
    return read_steps(file, CHUNKS)[WARM - 1 :], seconds


def real_run(folder: Path, layout: Layout, steps: int) -> tuple[tuple[Work, ...], float]:
    """The same of a tiny image generator whose samplers are processes."""
    asked = [f"steps={steps}", f"ahead={layout.ahead}", f"cluster.samplers={layout.samplers}", "algorithm.old=reread"]
    job = build(load("tiny/flow", [*CONFIG, *asked]))
    file, seconds = watched(job.trainer, folder, steps, layout.ahead)
    assert isinstance(job.policy, FlowPolicy) and isinstance(job.policy.generator, RemoteGenerator)
    job.policy.generator.close()
    return read_steps(file, 2)[WARM - 1 :], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each kind with the real sampler, in turn")
    parser.add_argument("--only", choices=("fakes", "real"), help="one of the two halves; both unless given")
    options = parser.parse_args()
    logging.getLogger("mmrl").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print("| chunk, update | trainers + samplers, ahead | seconds of a step | simulated | off |\n|---|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as scratch:
        folders = (Path(scratch) / str(i) for i in count())
        for latencies in () if options.only == "real" else FAKES:
            steps, _ = fake_run(next(folders), latencies, ALONE, options.steps)
            for layout in (Layout(1, samplers, ahead) for samplers in (1, 2, 3) for ahead in (0, 1)):
                found = fake_run(next(folders), latencies, layout, options.steps)[1]
                print_row(f"{latencies[0]:g} s, {latencies[1]:g} s", layout, found, seconds_of(steps, layout))
        if options.only != "fakes":
            load_before = os.getloadavg()[0]
            layout, alone, beside = Layout(1, 1, 1), list[Work](), list[float]()
            for _ in range(options.rounds):
                alone += real_run(next(folders), ALONE, options.steps)[0]
                beside.append(real_run(next(folders), layout, options.steps)[1])
            print_row("a tiny image generator", layout, statistics.mean(beside), seconds_of(alone, layout))
            print(f"\nload before the last row: {load_before:.1f} on {os.cpu_count()} cores")


def print_row(label: str, layout: Layout, found: float, simulated: float) -> None:
    print(f"| {label} | {named(layout)} | {found:.3f} | {simulated:.3f} | {simulated / found - 1:+.0%} |", flush=True)


if __name__ == "__main__":
    main()
