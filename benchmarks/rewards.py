"""Cost of rewards: the runner per sample, and how much of a slow reward's time sampling hides.

    python benchmarks/rewards.py                    # all
    python benchmarks/rewards.py runner overlap     # some

Every measurement is a function of MEASUREMENTS that gives rows (what, value, target) of one table.
"""

import argparse
import asyncio
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.answers.boxes.box import Box
from mmrl.app.plugins.resolve import load
from mmrl.core.ranks import Ranks
from mmrl.core.types import Group, MediaSize, Prompt, Request, Rollouts, Sample
from mmrl.serving import wire
from mmrl.serving.reward_client import RemoteReward
from mmrl.serving.reward_server import Served, serving
from mmrl.training.collect import Collector
from mmrl.training.rewards.calls import Calling
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings

Row = tuple[str, str, str]


def boxes(num_groups: int, size: int) -> list[Group]:
    """Groups of written boxes, as a grounding run has them."""
    seen = MediaSize(640, 480, 640, 480)
    texts = [f"<think>left of the tree</think><answer>[{10 + i}, 20, {200 + i}, 300]</answer>" for i in range(size)]
    samples = tuple(Sample(text, tuple(range(24)), media_sizes=(seen,)) for text in texts)
    return [Group(i, Prompt(str(i), "Where is it?", answer=Box(12, 20, 190, 300)), samples) for i in range(num_groups)]


def seconds(job: Callable[[], Any], repeats: int = 7) -> float:
    """Median of several runs after one to warm up."""
    job()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        job()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def runner() -> list[Row]:
    """Microseconds per sample of a rule reward, and the part of it that is the runner's."""
    groups = boxes(125, 8)
    count = sum(len(group.samples) for group in groups)
    rows: list[Row] = []
    iou = load("iou", "rewards")(space="pixel")
    for name, function in (("nothing", lambda group: [0.0] * len(group.samples)), ("iou", iou)):
        bare = seconds(lambda function=function: [function(group) for group in groups])
        for how in ("inline", "thread", "process"):
            if how == "process" and name == "nothing":
                continue
            rewards = RewardRunner([NamedReward(name, function, call=Calling(how))])
            all_of_it = seconds(lambda rewards=rewards: rewards.score(groups))
            rewards.close()
            whole, own = all_of_it / count * 1e6, (all_of_it - bare) / count * 1e6
            rows.append((f"{name}, {how}: per sample, of it the runner", f"{whole:.1f} us, {own:.1f} us", "< 1000 us"))
    return rows


class Sampler:
    """A policy that takes its time to sample and nothing else."""

    offers: frozenset[str] = frozenset()

    def __init__(self, seconds_per_group: float) -> None:
        self.seconds_per_group = seconds_per_group

    def rollout(self, requests: Sequence[Request], sampling: Any = None) -> Rollouts:
        time.sleep(self.seconds_per_group * len(requests))
        groups = tuple(Group(r.group_id, r.prompt, (Sample("x"),) * r.count) for r in requests)
        ids = torch.tensor([group.id for group in groups for _ in group.samples])
        sample_ids = torch.tensor([i for group in groups for i in range(len(group.samples))])
        return Rollouts(groups, ids, sample_ids, torch.ones(len(ids), 1, dtype=torch.bool), Nothing())

    def join(self, traces: Sequence[Any]) -> Any:
        return traces[0]


@dataclass(frozen=True)
class Nothing:
    """A trace of nothing."""

    def take(self, rows: Any, steps: slice) -> "Nothing":
        return self


def overlap(groups: int = 32, sampling_s: float = 2.0, reward_s: float = 1.6) -> list[Row]:
    """Share of a slow reward's time that disappears behind sampling when a step is sampled in parts."""

    async def judge(group: Group) -> list[float]:
        await asyncio.sleep(reward_s / groups)
        return [1.0] * len(group.samples)

    def blocking(group: Group) -> list[float]:
        time.sleep(reward_s / groups)
        return [1.0] * len(group.samples)

    rows: list[Row] = []
    kinds = (
        ("async judge, one group at a time", judge, Calling(workers=1)),
        ("blocking reward in a thread", blocking, Calling()),
    )
    for name, function, calling in kinds:
        for parts in (1, 4, 8, 16):
            rewards = RewardRunner([NamedReward("slow", cast(Any, function), call=calling)])
            prompts = [Prompt(str(i)) for i in range(groups)]
            collector = Collector(
                Sampler(sampling_s / groups),  # type: ignore[arg-type] - all of a policy that collecting needs
                Shuffled(prompts, 0),
                rewards,
                Algorithm(),
                TrainSettings(prompts_per_step=groups, rollout_parts=parts),
                Ranks(),
                cast(Any, None),  # Once looks at no reading of what was sampled
            )
            step = seconds(collector.collect, repeats=3)
            hidden = (sampling_s + reward_s - step) / reward_s
            target = ">= 80 %" if parts >= 8 else ""
            rows.append((f"{name}, {parts} parts: step, hidden", f"{step:.2f} s, {hidden:.0%}", target))
    return rows


def pictures(count: int = 16, side: int = 512) -> Group:
    """A group of noise, which no encoding makes smaller."""
    rng = np.random.default_rng(0)
    drawn = [Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)) for _ in range(count)]
    return Group(0, Prompt("0", 'a cat beside a sign that says "OPEN"'), tuple(Sample(image=image) for image in drawn))


@contextmanager
def peer(listener: socket.socket, num_bytes: int) -> Iterator[None]:
    """Somebody who takes so many bytes and answers one, again and again."""

    def take() -> None:
        connection, _ = listener.accept()
        buffer = bytearray(1 << 20)
        with connection:
            while True:
                left = num_bytes
                while left:
                    got = connection.recv_into(buffer, min(left, len(buffer)))
                    if not got:
                        return
                    left -= got
                connection.sendall(b"x")

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    yield
    thread.join(timeout=5)


def server() -> list[Row]:
    """A round trip of 16 pictures of 512 x 512 to a reward server, beside packing, copying over a socket and unpacking them."""
    group = pictures()
    body = wire.pack_group(group)
    with socket.socket() as listener, tempfile.TemporaryDirectory() as folder:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with peer(listener, len(body)), socket.create_connection(listener.getsockname()) as connection:

            def raw() -> None:
                connection.sendall(wire.pack_group(group))
                connection.recv(1)
                wire.unpack_group(body, Path(folder))

            bare = seconds(raw)
    with serving({"nothing": Served("nothing", lambda group: [0.0] * len(group.samples), "")}) as base:
        remote = RemoteReward(f"{base}/nothing")
        whole = seconds(lambda: remote.score(group))
    rows: list[Row] = [("16 pictures of 512 x 512, megabytes", f"{len(body) / 1e6:.1f}", "")]
    rows += [("pack, copy over a socket, unpack", f"{bare * 1e3:.0f} ms", "")]
    return [*rows, ("round trip to a reward that does nothing", f"{whole * 1e3:.0f} ms, {whole / bare:.2f} x", "< 2 x")]


def models() -> list[Row]:
    """Pictures per second of the model rewards that need no download, on this machine."""
    group, rows = pictures(8, 256), list[Row]()
    for name in ("brisque", "ocr", "image_text_proxy", "jpeg_size"):
        try:
            reward = load(name, "rewards")()
            took = seconds(lambda reward=reward: reward(group), repeats=3)
        except (ValueError, FileNotFoundError, ModuleNotFoundError) as error:
            rows.append((name, f"not measured: {str(error).splitlines()[0]}", ""))
            continue
        rows.append((f"{name}: pictures of 256 x 256 per second", f"{len(group.samples) / took:.1f}", ""))
    return rows


MEASUREMENTS: dict[str, Callable[[], list[Row]]] = {
    "runner": runner,
    "overlap": overlap,
    "server": server,
    "models": models,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*MEASUREMENTS, []], help="default: all")
    torch.set_num_threads(1)
    for name in parser.parse_args().what or MEASUREMENTS:
        print(f"\n{name}\n\n| what | measured | target |\n|---|---|---|")
        for row in MEASUREMENTS[name]():
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
