"""A generator whose samples other processes draw: how many, where, how they are given its weights and share its chunks."""

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from mmrl.policies.shared.weights import FollowsWeights, Publication, Weights
from mmrl.policies.shared.workers.crew import Crew, Job, Restarts
from mmrl.policies.shared.workers.slots import Slots
from mmrl.runtime.repeating import Kernels
from mmrl.runtime.workers import LAUNCHER, WorkerProcess

CARDS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class SamplerSettings:
    """The processes of `[cluster] samplers`: `SamplerSettings(2)`."""

    count: int
    restarts: int = 3
    """How often one that died is started again, all together."""
    shares: bool = False
    """They use the trainer's card."""

    def places(self) -> list["Place"]:
        """A place for each; cards after those of all trainers of this machine, of which a launcher says the number.

        Raises:
            ValueError: there are too few cards.
        """
        kernels, cards = Kernels.now(), cards_here()
        if not cards:
            return [Place("", kernels)] * self.count
        rank, trainers = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        if self.shares:
            return [Place(cards[rank], kernels)] * self.count
        if len(cards) < trainers * (1 + self.count):
            raise ValueError(
                f"cluster.samplers is {self.count}, and this process sees {len(cards)} card(s), of which {trainers} train: give "
                f"it more ({CARDS}), lower cluster.samplers, or let them share the trainer's with cluster.samplers_share = true"
            )
        first = trainers + rank * self.count
        return [Place(card, kernels) for card in cards[first : first + self.count]]


@dataclass(frozen=True)
class Place:
    """Where one process computes."""

    card: str
    """Its name for CUDA; empty: the CPU."""
    kernels: Kernels

    def enter(self) -> None:
        """Let this process compute there and by itself, with the same sums as the one that trains; before it uses a card."""
        for name in filter(LAUNCHER.fullmatch, list(os.environ)):
            # it would wait for the trainers' other processes, and they for it
            del os.environ[name]
        os.environ[CARDS] = self.card
        self.kernels.take()


def cards_here() -> list[str]:
    """The names of the cards that this process may use."""
    if not torch.cuda.is_available():
        return []
    said = os.environ.get(CARDS)
    return said.split(",") if said else [str(i) for i in range(torch.cuda.device_count())]


@runtime_checkable
class HasWeights(Protocol):
    """A policy, as far as its weights go."""

    @property
    def weights(self) -> Weights: ...


Host = TypeVar("Host", bound=HasWeights)
Local = TypeVar("Local")


class Remote(FollowsWeights, Generic[Host, Local]):
    """The part of such a generator that does not depend on what it draws. Processes start when weights are first given.

    Args:
        local: draws with the network that trains, where the weights that are swapped in are not the live ones.
        make: gives the call that a process at a place answers, with the weights of these slots.
    """

    def __init__(
        self, host: Host, local: Local, settings: SamplerSettings, make: Callable[[Slots, Place], Callable[..., object]]
    ) -> None:
        self.host, self.local, self.settings, self.make = host, local, settings, make
        self.crew: Crew | None = None
        self.slots: Slots | None = None
        self.version, self.place = -1, 0
        """The weights that are drawn with, and the slot that holds them."""
        self._publishes = False

    def follow(self, weights: Weights, version: int) -> None:
        """Draw with the live weights, unless the run publishes weights itself."""
        if not self._publishes:
            self._open().begin()
            self._hold(version, list(weights.named.values()))

    def publish(self, version: int) -> Publication:
        """See FollowsWeights."""
        self._publishes = True
        crew, kept = self._open(), [weight.detach().clone() for weight in self.host.weights.named.values()]
        crew.begin()
        return version, partial(self._hold, version, kept), crew.leave

    def ask(self, chunks: Sequence[Job]) -> list[object]:
        """The processes' answers to these chunks, in their order.

        Raises:
            UnavailableError: processes died too often, or hold other weights.
        """
        assert self.crew is not None
        return self.crew.ask([(self.place, self.version, *chunk) for chunk in chunks])

    def close(self) -> None:
        """End the processes, and give their shared memory back."""
        if self.crew is not None and self.slots is not None:
            close(self.crew, self.slots)
        self.crew = self.slots = None

    def _hold(self, version: int, weights: Sequence[Tensor]) -> None:
        assert self.slots is not None
        self.version, self.place = version, 1 - self.place
        self.slots.write(self.place, version, weights)

    def _open(self) -> Crew:
        if self.crew is None:
            places = self.settings.places()
            self.slots = Slots.for_weights(list(self.host.weights.named.values()))
            workers = [WorkerProcess(self.make(self.slots, place)) for place in places]
            self.crew = Crew(workers, Restarts(self.settings.restarts), is_timed=True)
            weakref.finalize(self, close, self.crew, self.slots)
        return self.crew


def refuse_mixed(asked: Sequence[tuple[int, int]], drawn: Sequence[tuple[int, int]]) -> None:
    """Raise RuntimeError unless a chunk's rows, named by (seed, sample), are those that were asked for, in their order."""
    if list(drawn) != list(asked):
        raise RuntimeError(f"a sampler was asked for the samples {list(asked)[:3]} ..., and drew {list(drawn)[:3]} ...")


def close(crew: Crew, slots: Slots) -> None:
    """The run is over."""
    crew.close()
    slots.free()


class SamplingProcess:
    """The call that a sampling process answers.

    Args:
        make: builds the policy, once the process has started.
        sample: (policy, what a chunk asks for) -> the chunk's answer.
    """

    def __init__(self, make: Callable[[], Any], sample: Callable[..., object], slots: Slots, place: Place) -> None:
        self.make, self.sample, self.slots, self.place = make, sample, slots, place

    def prepare(self) -> None:
        """Load the model."""
        self.place.enter()
        from accelerate import Accelerator
        from tqdm import tqdm
        from transformers.utils import logging

        # tqdm's own lock is a semaphore of the machine, which stays behind where a process is killed
        tqdm.set_lock(threading.RLock())
        logging.disable_progress_bar()
        self.policy = self.make()
        self.policy.prepare(Accelerator(cpu=not self.place.card))

    @torch.no_grad()
    def __call__(self, place: int, version: int, *chunk: object) -> object:
        """A chunk, sampled with the weights of a version.

        Raises:
            TornWeightsError: the slot does not hold them.
        """
        weights = self.policy.weights
        self.slots.read(place, version, list(weights.named.values()))
        weights.num_updates = version
        return self.sample(self.policy, *chunk)
