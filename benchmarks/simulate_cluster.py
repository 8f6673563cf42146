"""Steps per hour of a run on 1 to 256 cards, from what one of its steps was measured to take.

    python benchmarks/simulate_cluster.py runs/mine

The run is one of `ahead = 0` with one trainer, at most one sampler or engine and algorithm.old = "reread", for a run that samples
ahead reads old log-probabilities too. Its spans.jsonl says what steps are made of: chunks that any sampler may draw, the rest of
collecting, what trainers share, and what each of them does by itself. Trainers share without loss, and weights travel in no
time but `--exchange`: a bound for what a cluster can do. `simulation_check.py` compares this with mmrl's own loop.
"""

import argparse
import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path

STEPS = 240
"""Simulated steps, of which the second half counts."""
MOST_AHEAD = 2
ALMOST = 1.01
"""Layouts that are slower than the fastest by less are as good."""


@dataclass(frozen=True)
class Work:
    """Seconds of one step on one trainer and one sampler."""

    chunks: tuple[float, ...]
    """Pieces of sampling, which any sampler may draw."""
    collecting: float
    """Rewards and all else of collecting, which nobody shares."""
    shared: float
    """Readings and updates, of which each trainer takes its part."""
    alone: float
    """What every trainer does by itself: the optimizer's step, and what lies between."""


@dataclass(frozen=True)
class Layout:
    """Who has cards, one each: `Layout(trainers=1, samplers=2, ahead=1)`; without samplers trainers draw."""

    trainers: int = 1
    samplers: int = 0
    ahead: int = 0

    @property
    def cards(self) -> int:
        return self.trainers + self.samplers

    def runs(self, is_text: bool) -> bool:
        """Does mmrl start it? Samplers are shared out to trainers, engines serve all."""
        return self.samplers % self.trainers == 0 or is_text


@dataclass(frozen=True)
class Measured:
    """What a run's folder says."""

    steps: tuple[Work, ...]
    prompts: int
    is_text: bool


@cache
def drawn_after(chunks: tuple[float, ...], samplers: int) -> float:
    """Seconds until all chunks are drawn: each by the sampler that is free first."""
    free = [0.0] * samplers
    for chunk in chunks:
        heapq.heapreplace(free, free[0] + chunk)
    return max(free)


def ends(steps: Sequence[Work], layout: Layout, exchange: float = 0.0) -> list[float]:
    """When each step ends, in seconds from the beginning of the run.

    Args:
        exchange: seconds that several trainers lose by each step's exchange of gradients.
    """
    collected, ended = list[float](), list[float]()
    for number, work in enumerate(steps):
        sampling = drawn_after(work.chunks, layout.samplers) if layout.samplers else sum(work.chunks) / layout.trainers
        # the weights of step j - k, and the collector, which takes one step after the other
        weights = ended[number - layout.ahead - 1] if number > layout.ahead else 0.0
        begun = max(weights, collected[-1] if collected else 0.0)
        collected.append(begun + sampling + work.collecting)
        update = work.shared / layout.trainers + work.alone + exchange * (layout.trainers > 1)
        ended.append(max(collected[-1], ended[-1] if ended else 0.0) + update)
    return ended


def seconds_of(steps: Sequence[Work], layout: Layout, exchange: float = 0.0) -> float:
    """Seconds of a step, once all are at work; the steps that were measured follow each other again and again."""
    found = ends(list(islice(cycle(steps), STEPS)), layout, exchange)
    return (found[-1] - found[STEPS // 2 - 1]) / (STEPS - STEPS // 2)


def layouts(cards: int, prompts: int, chunks: int) -> Iterator[Layout]:
    """All layouts of at most so many cards whose trainers can share a step's prompts, and whose samplers all have a chunk."""
    for trainers in (one for one in range(1, cards + 1) if prompts % one == 0):
        yield Layout(trainers)
        for samplers in range(1, min(cards - trainers, chunks) + 1):
            yield from (Layout(trainers, samplers, ahead) for ahead in range(MOST_AHEAD + 1))


def best(measured: Measured, cards: int, exchange: float, only_today: bool) -> tuple[Layout, float]:
    """The fastest layout, of several almost as fast the smallest one, and its seconds per step."""
    chunks = len(measured.steps[0].chunks)
    asked = [one for one in layouts(cards, measured.prompts, chunks) if one.runs(measured.is_text) or not only_today]
    rated = [(seconds_of(measured.steps, one, exchange), one) for one in asked]
    enough = ALMOST * min(seconds for seconds, _ in rated)
    seconds, layout = min((pair for pair in rated if pair[0] <= enough), key=lambda pair: (pair[1].cards, pair[1].ahead))
    return layout, seconds


def read_run(folder: Path) -> Measured:
    """The steps of a run, and how many chunks each has.

    Raises:
        ValueError: its spans are not those of one trainer that waits for its samples.
    """
    from mmrl.app.config.run import load
    from mmrl.policies.flow.settings import FlowPolicyConfig

    config = load(str(folder / "config.toml"), []).config
    policy = config.policy
    if config.ahead or config.cluster.samplers > 1 or config.cluster.engines > 1:
        raise ValueError(f"{folder} samples ahead or with several samplers: measure a run with ahead = 0 and at most one")
    prompts, per_chunk = config.prompts_per_step, 1
    if isinstance(policy, FlowPolicyConfig):
        per_chunk = max(1, policy.forward_rows // config.algorithm.algorithm.group_size)
    steps = read_steps(folder / "spans.jsonl", -(-prompts // per_chunk))
    return Measured(steps, prompts, not isinstance(policy, FlowPolicyConfig))


def read_steps(file: Path, chunks: int) -> tuple[Work, ...]:
    """What steps are made of, without the first of each process; ValueError where there is no other."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    steps = tuple(work_of(line["seconds"], line["spans"], chunks) for line in lines if not line["is_first"])
    if not steps:
        raise ValueError(f"{file} has no steps but first ones of a process: train a few more")
    return steps


def work_of(seconds: float, spans: Sequence[tuple[str, float, float]], chunks: int) -> Work:
    """What the spans of one step say; sampling is cut into so many equal chunks."""
    drawing, optimizer = (sum(length for name, _, length in spans if name == one) for one in ("generate", "optimizer"))
    collected = sum(length for name, _, length in spans if name in ("rollout", "reward"))
    trained = sum(length for name, _, length in spans if name in ("read", "update"))
    return Work((drawing / chunks,) * chunks, collected - drawing, trained - optimizer, seconds - collected - trained + optimizer)


def print_table(measured: Measured, most: int, exchange: float) -> None:
    print("| cards | trainers + samplers, ahead | steps per hour | with samplers that serve all | steps per hour |")
    print("|--:|---|--:|---|--:|")
    for cards in (2**i for i in range(most.bit_length())):
        found = [best(measured, cards, exchange, only_today) for only_today in (True, False)]
        cells = [f"{named(layout)} | {3600 / seconds:,.0f}" for layout, seconds in found]
        print(f"| {cards} | {' | '.join(cells)} |")


def named(layout: Layout) -> str:
    return f"{layout.trainers} + {layout.samplers}, {layout.ahead}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the run that was measured")
    parser.add_argument("--cards", type=int, default=256, help="the most")
    parser.add_argument("--exchange", type=float, default=0.0, help="seconds by which each step of several trainers is longer")
    options = parser.parse_args()
    print_table(read_run(options.run), options.cards, options.exchange)


if __name__ == "__main__":
    main()
