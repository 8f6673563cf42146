"""A fake policy that writes with a copy of its weights, as one with an engine does, and latencies for it."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch

from mmrl.core.types import Request, Rollouts
from mmrl.runtime.tensors import copy_all
from tests.support import fakes

ENDS_S = 100.0
"""What never comes is waited for so long; a test that holds does not."""


def never(what: str) -> None:
    """No latency."""


@dataclass
class PublishingPolicy(fakes.FakeTextPolicy):
    """Its rollouts come from `copy`, which holds what was published and then taken up."""

    waits: Callable[[str], None] = never
    """Called with `rollout` and with `read` where a card would be busy."""
    lost: frozenset[int] = frozenset()
    """Publications that never arrive, counted from 0."""
    twice: frozenset[int] = frozenset()
    """Publications that are applied twice."""
    denied: frozenset[int] = frozenset()
    """Publications that never arrive, although it says that they did."""
    given: int = -1
    """The version that the copy has."""
    num_updates: int = 0
    count: int = 0
    copy: Any = None
    lock: Any = field(default_factory=Lock)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.copy = fakes.FakeTextPolicy(self.length, views=self.views)

    def publish(self, version: int | None = None) -> tuple[int, Callable[[], None], Callable[[], None]]:
        number = self.num_updates if version is None else version
        weights = [weight.detach().clone() for weight in self.parameters()]
        place, self.count = self.count, self.count + 1

        def hold() -> None:
            if place not in self.lost:
                if place not in self.denied:
                    copy_all(list(self.copy.parameters()), weights)
                self.given = number + (place in self.twice)

        return number, hold, lambda: None

    def advance(self) -> None:
        super().advance()
        self.num_updates += 1

    def rollout(self, requests: Sequence[Request], sampling: Any = None) -> Rollouts:
        self.waits("rollout")
        rollouts = self.copy.rollout(requests, sampling)
        rollouts.__dict__["weights_version"] = self.given
        return rollouts

    def read(self, trace: Any, readings: Any, mask: Any) -> Any:
        self.waits("read")
        return super().read(trace, readings, mask)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "num_updates": torch.tensor(self.num_updates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = dict(state)
        self.num_updates = int(own.pop("num_updates"))
        super().load_state_dict(own)


def random_waits(seed: int, most_s: float = 0.004) -> Callable[[str], None]:
    """Sleeps of random length."""
    draws = random.Random(seed)
    return lambda what: time.sleep(draws.random() * most_s)


def await_thread() -> None:
    """Wait for threads that runs have left behind: until they end, their rewards draw from the generators of the process."""
    for thread in threading.enumerate():
        if thread.name == "mmrl-ahead":
            thread.join(ENDS_S)
            assert not thread.is_alive()
