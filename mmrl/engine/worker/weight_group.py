"""Weights from a trainer to the workers of one server, over a process group of their own beside whatever groups they have.

Rank 0 is the trainer, rank 1 + w is worker w. They meet at a store of the trainer's, agree on Gloo or NCCL, and join. mmrl
imports this file as its own; vLLM's workers, which have no mmrl, import it from their PYTHONPATH: it needs torch alone.
"""

import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

Torch = Any
"""A class of torch's that it does not export."""
dist: Torch = torch.distributed
cuda: Torch = torch.cuda
BUNDLE = 64 << 20
ALIGNED = 16
"""Bytes: a tensor of a bundle begins at a multiple of this, so that any type may lie there."""
POLL_S = 0.0005


@dataclass(frozen=True)
class MeetingPlace:
    """Where the trainer waits: `MeetingPlace("127.0.0.1", 29511, "5d1c", 60.0, 600.0)`."""

    host: str
    port: int
    name: str
    """Of this group alone."""
    join_s: float
    """Longest wait for all processes to come."""
    seconds: float
    """Longest wait for the other side in a transfer."""
    bundle: int = BUNDLE
    """Bytes that travel at once; a larger tensor travels alone."""

    def share_of(self, store: Torch) -> Torch:
        """The part of a store that is this group's."""
        return dist.PrefixStore(self.name, store)


@dataclass(frozen=True)
class Seat:
    """One process of a group, and where its tensors lie."""

    rank: int
    size: int
    """Processes of the group, the trainer among them."""
    device: torch.device
    host: str
    """The address under which the others reach it."""


@dataclass(frozen=True)
class Card:
    """The device that a worker computes on: `Card("", ())` is a CPU."""

    uuid: str = ""
    nccl: tuple[int, ...] = ()
    """The version of NCCL; two that differ cannot talk."""

    @classmethod
    def of(cls, device: torch.device) -> "Card":
        """The card of this process."""
        if device.type != "cuda":
            return cls()
        return cls(str(cuda.get_device_properties(device).uuid), tuple(int(part) for part in cuda.nccl.version()))


@dataclass(frozen=True)
class TensorFacts:
    """A tensor that will come: `TensorFacts("lm_head.weight", "bfloat16", (1000, 64))`."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> "TensorFacts":
        return cls(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * getattr(torch, self.dtype).itemsize


def tensors_as_json(facts: Sequence[TensorFacts]) -> str:
    """The tensors as JSON, in the order in which they travel."""
    return json.dumps([[one.name, one.dtype, list(one.shape)] for one in facts])


def read_tensors(text: str) -> list[TensorFacts]:
    """The tensors that `tensors_as_json` wrote down."""
    return [TensorFacts(name, dtype, tuple(shape)) for name, dtype, shape in json.loads(text)]


def bundles(facts: Sequence[TensorFacts], most: int) -> list[list[tuple[TensorFacts, int]]]:
    """The tensors that travel together, each with the byte that it begins at; the same on both sides."""
    found: list[list[tuple[TensorFacts, int]]] = []
    end = 0
    for one in facts:
        size = -(-one.nbytes // ALIGNED) * ALIGNED
        if not found or end + size > most:
            found.append([])
            end = 0
        found[-1].append((one, end))
        end += size
    return found


class WeightGroup:
    """A process group that torch's own list of groups does not know, so the default one stays as it is.

    Raises RuntimeError where not all of its processes came in time.
    """

    def __init__(self, store: Torch, place: MeetingPlace, kind: str, seat: Seat) -> None:
        self.kind, self.seat, self.place = kind, seat, place
        named, span = place.share_of(store), timedelta(seconds=place.seconds)
        named.set(f"here/{seat.rank}", "")
        # the store waits a shorter time than a transfer may take
        named.wait([f"here/{rank}" for rank in range(seat.size)])
        self.group: Torch = (nccl_group if kind == "nccl" else gloo_group)(dist.PrefixStore(kind, named), seat, span)
        self.broadcast(torch.zeros(1, dtype=torch.uint8, device=self.device))

    @property
    def device(self) -> torch.device:
        """Where tensors lie as they travel."""
        return self.seat.device if self.kind == "nccl" else torch.device("cpu")

    def send(self, weights: Mapping[str, Tensor], look: Callable[[], None]) -> None:
        """Send all weights, in the order of the mapping; `look` raises when waiting is no longer of any use."""
        for bundle in bundles([TensorFacts.of(name, weight) for name, weight in weights.items()], self.place.bundle):
            data = empty_for(bundle, torch.device("cpu"))
            for one, begin in bundle:
                data[begin : begin + one.nbytes] = weights[one.name].detach().cpu().contiguous().flatten().view(torch.uint8)
            self.broadcast(data.to(self.device), look)

    def receive(self, facts: Sequence[TensorFacts]) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor, one bundle at a time, each in memory of its own."""
        for bundle in bundles(facts, self.place.bundle):
            data = empty_for(bundle, self.device)
            self.broadcast(data)
            for one, begin in bundle:
                yield one.name, data[begin : begin + one.nbytes].view(getattr(torch, one.dtype)).view(one.shape)

    def broadcast(self, data: Tensor, look: Callable[[], None] = lambda: None) -> None:
        """Rank 0's bytes to all; RuntimeError where a process left, or none moved for as long as the group waits."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        work, until = self.group.broadcast([data], options), time.monotonic() + self.place.seconds
        while not work.is_completed():
            look()
            if time.monotonic() > until:
                raise RuntimeError(f"the other side did not go on within {self.place.seconds:.0f} s")
            time.sleep(POLL_S)
        work.wait()

    def close(self) -> None:
        """Leave. Gloo's processes see it as their connection ends, NCCL's need a signal to stop."""
        if self.kind == "nccl":
            with contextlib.suppress(RuntimeError):
                self.group.abort()
        self.group = None


def empty_for(bundle: Sequence[tuple[TensorFacts, int]], device: torch.device) -> Tensor:
    """Bytes enough for a bundle."""
    last, begin = bundle[-1]
    return torch.empty(begin + last.nbytes, dtype=torch.uint8, device=device)


def gloo_group(store: Torch, seat: Seat, span: timedelta) -> Torch:
    """Gloo over the address that the others reach: left alone it would ask what this machine's name means, maybe nothing."""
    options = dist.ProcessGroupGloo._Options()
    options._timeout = span
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=seat.host)]
    return dist.ProcessGroupGloo(store, seat.rank, seat.size, options)


def nccl_group(store: Torch, seat: Seat, span: timedelta) -> Torch:
    """NCCL, whose failures are errors of the caller: torch's watchdog would end the process for them."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = span + span
    with torch.cuda.device(seat.device), variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"):
        return dist.ProcessGroupNCCL(store, seat.rank, seat.size, options)


@contextlib.contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """A block in which an environment variable has this value."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def open_store(host: str, seconds: float) -> Torch:
    """The trainer's store, at a free port of this address alone."""
    listening = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port, span = listening.getsockname()[1], timedelta(seconds=seconds)
    return dist.TCPStore(host, port, is_master=True, timeout=span, wait_for_workers=False, master_listen_fd=listening.detach())


def own_address(host: str, port: int, seconds: float) -> str:
    """The address of this machine on the way to another; OSError where nothing answers there."""
    with socket.create_connection((host, port), timeout=seconds) as reached:
        return str(reached.getsockname()[0])


class Receiver:
    """A worker's side: it meets the trainer, joins its group, and takes tensors from it.

    Args:
        rank: of the worker among all of its server, counted from 0.
        workers: of the server.
        device: what it computes on.
    """

    def __init__(self, rank: int, workers: int, device: torch.device) -> None:
        self.rank, self.workers, self.device = rank, workers, device
        self.place: MeetingPlace | None = None
        self.store: Torch = None
        self.host = ""
        self.group: WeightGroup | None = None

    def meet(self, message: str) -> str:
        """Go where the trainer waits and report this worker's card; returns what is wrong in one sentence, or nothing."""
        self.leave()
        place = MeetingPlace(**json.loads(message))
        try:
            self.host = own_address(place.host, place.port, place.join_s)
            span = timedelta(seconds=place.join_s)
            self.store = dist.TCPStore(place.host, place.port, is_master=False, timeout=span, wait_for_workers=False)
            place.share_of(self.store).set(
                f"worker/{self.rank}", json.dumps(asdict(Card.of(self.device)) | {"workers": self.workers})
            )
        except (OSError, RuntimeError) as error:
            return f"worker {self.rank} cannot reach the trainer at {place.host}:{place.port} ({first_line(error)})"
        self.place = place
        return ""

    def join(self, kind: str) -> str:
        """Join the group, and wait for all others; what is wrong, in one sentence."""
        if self.place is None:
            return f"worker {self.rank} has not met the trainer"
        seat = Seat(1 + self.rank, 1 + self.workers, self.device, self.host)
        try:
            self.group = WeightGroup(self.store, self.place, kind, seat)
        except RuntimeError as error:
            return f"worker {self.rank} could not join the trainer's group ({first_line(error)})"
        return ""

    def is_in(self, name: str) -> bool:
        """Is it a member of this group?"""
        return self.group is not None and self.place is not None and self.place.name == name

    def tensors(self, name: str, facts: Sequence[TensorFacts]) -> Iterator[tuple[str, Tensor]]:
        """The weights as they come. When one cannot be taken the group is left, so that the trainer does not wait.

        Raises ValueError where it is no member of this group.
        """
        if self.group is None or not self.is_in(name):
            raise ValueError(f"worker {self.rank} is not in the trainer's group {name}: it has to join first")
        return self.group.receive(facts)

    def leave(self) -> None:
        """Forget the trainer."""
        if self.group is not None:
            self.group.close()
        self.group = self.place = self.store = None


def first_line(error: BaseException) -> str:
    """The words of an error of torch's, without its traces."""
    words = str(error).strip()
    return words.splitlines()[0] if words else type(error).__name__
