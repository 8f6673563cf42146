"""A generator whose samples other processes draw: how many, where, how they are given its weights and share its chunks.

Weights lie in two slots of memory that processes of one machine share. A version is written into the slot that is not in use. A
reader compares the version before and after it has copied, so weights that were replaced meanwhile, or written in part, are never
sampled with.
"""

import os
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from shutil import disk_usage
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from mmrl.policies.shared.weights import FollowsWeights, Publication, Weights
from mmrl.policies.shared.workers.crew import Crew, Job, Restarts
from mmrl.runtime.blame import UnavailableError
from mmrl.runtime.repeating import Kernels
from mmrl.runtime.workers import LAUNCHER, WorkerProcess

HEAD = struct.Struct("qq")
"""Version before and after the weights of a slot: unlike while they are written."""
ALIGNED = 64
NOTHING = -1
SHARED = Path("/dev/shm")


class TornWeightsError(UnavailableError):
    """A slot does not hold the version that was asked of it, or not all of it."""


@dataclass(frozen=True)
class Slots:
    """Two slots for tensors of these types and shapes; it travels to other processes by the name of the memory."""

    name: str
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def for_weights(cls, weights: Sequence[Tensor]) -> "Slots":
        """New memory, which `free` gives back.

        Raises:
            ValueError: the machine has not enough of it.
        """
        dtypes, shapes = tuple(weight.dtype for weight in weights), tuple(tuple(weight.shape) for weight in weights)
        size = cls("", dtypes, shapes).size
        memory = new_memory(2 * size)
        found = cls(memory.name, dtypes, shapes)
        for place in (0, 1):
            HEAD.pack_into(buffer_of(found.name), place * size, NOTHING, NOTHING)
        return found

    @property
    def size(self) -> int:
        """Bytes of a slot."""
        return ALIGNED + sum(map(self._bytes, range(len(self.shapes))))

    @torch.no_grad()
    def write(self, place: int, version: int, weights: Sequence[Tensor]) -> None:
        """Put all weights into a slot."""
        buffer, start = buffer_of(self.name), place * self.size
        HEAD.pack_into(buffer, start, version, NOTHING)
        for own, weight in zip(self._tensors(place), weights, strict=True):
            own.copy_(weight)
        HEAD.pack_into(buffer, start, version, version)

    @torch.no_grad()
    def read(self, place: int, version: int, into: Sequence[Tensor]) -> None:
        """Copy a slot's weights into these tensors.

        Raises:
            TornWeightsError: it holds another version, or did so before all was copied.
        """
        self._expect(place, version)
        for weight, own in zip(into, self._tensors(place), strict=True):
            # through .data the version counters stay, as for shadows
            weight.data.copy_(own)
        self._expect(place, version)

    def free(self) -> None:
        """Give the memory back, once; processes that have it open keep it until they end."""
        memory = memory_of(self.name)
        with suppress(BufferError):
            memory.close()
        with suppress(FileNotFoundError):
            memory.unlink()

    def _expect(self, place: int, version: int) -> None:
        found = HEAD.unpack_from(buffer_of(self.name), place * self.size)
        if found != (version, version):
            raise TornWeightsError(
                f"a sampler was to use weights of version {version}, and the memory it shares with the trainer holds "
                f"{found[0]} to {found[1]}: a publication was lost, written in part or replaced too early"
            )

    def _tensors(self, place: int) -> list[Tensor]:
        buffer, at, found = buffer_of(self.name), place * self.size + ALIGNED, list[Tensor]()
        for i, (dtype, shape) in enumerate(zip(self.dtypes, self.shapes, strict=True)):
            count = prod(shape)
            flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=at) if count else torch.empty(0, dtype=dtype)
            found.append(flat.view(shape))
            at += self._bytes(i)
        return found

    def _bytes(self, number: int) -> int:
        return -(-prod(self.shapes[number]) * self.dtypes[number].itemsize // ALIGNED) * ALIGNED


def new_memory(size: int) -> SharedMemory:
    """New shared memory that has all its pages: a write without one kills the process, whoever has filled the rest meanwhile.

    Raises:
        ValueError: the machine has not enough of it.
    """
    room, memory = disk_usage(SHARED).free if SHARED.exists() else size, None
    if room >= size:
        with suppress(OSError):
            memory = SharedMemory(create=True, size=size)
            claim_pages(memory)
            return memory
    if memory is not None:
        memory.close()
        memory.unlink()
    raise ValueError(
        f"samplers are given the weights through {size / 2**20:.0f} MiB of shared memory, and {SHARED} has "
        f"{room / 2**20:.0f} MiB: give the container more (docker run --shm-size), or set cluster.samplers = 0"
    )


def claim_pages(memory: SharedMemory) -> None:
    """Take the pages of new memory now; OSError where there are not as many."""
    if (file := SHARED / memory.name).exists():
        with file.open("r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, memory.size)


@cache
def memory_of(name: str) -> SharedMemory:
    """The memory of this name, opened once in a process."""
    return SharedMemory(name)


def buffer_of(name: str) -> memoryview:
    buffer = memory_of(name).buf
    assert buffer is not None
    return buffer


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
