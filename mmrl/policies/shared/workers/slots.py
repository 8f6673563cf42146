"""Trainable weights in memory that processes of one machine share: two slots, each with the version of what it holds.

A version is written into the slot that is not in use. A reader compares the version before and after it has copied, so weights
that were replaced meanwhile, or written in part, are never sampled with.
"""

import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from shutil import disk_usage

import torch
from torch import Tensor

from mmrl.runtime.blame import UnavailableError

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
