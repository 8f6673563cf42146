"""Peak memory of a piece of work, and how much more there is: on a GPU, or on this machine."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


@runtime_checkable
class Room(Protocol):
    """The memory of the device that updates run on."""

    def begin(self) -> None:
        """Note the memory in use as a piece of work begins."""
        ...

    def times_more(self, fill: float) -> float:
        """How many times what the work took would fill this share of what was free when it began; 0 where that is unknown."""
        ...


@dataclass
class CudaRoom:
    """The memory of a GPU as torch counts it."""

    device: torch.device
    _before: int = field(default=0, init=False)

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)
        self._before = torch.cuda.memory_allocated(self.device)

    def times_more(self, fill: float) -> float:
        """Fragments and what other processes hold count as taken."""
        taken = torch.cuda.max_memory_allocated(self.device) - self._before
        free, _ = torch.cuda.mem_get_info(self.device)
        return fill * (free + torch.cuda.memory_reserved(self.device) - self._before) / max(1, taken)


@dataclass
class HostRoom:
    """The memory of this machine, or of the container, as Linux counts it; elsewhere nothing is known and nothing grows.

    A machine out of memory kills the process instead of raising, so only half of what is free counts.
    """

    proc: Path = PROC
    cgroup: Path = CGROUP
    _before: int = field(default=0, init=False)
    _free: int = field(default=0, init=False)

    def begin(self) -> None:
        # Without permission to reset it, the peak only rises, and growth stops sooner.
        with suppress(OSError):
            (self.proc / "self/clear_refs").write_text("5")
        self._before, self._free = self._status("VmRSS"), self._available()

    def times_more(self, fill: float) -> float:
        taken = self._status("VmHWM") - self._before
        return fill * 0.5 * self._free / taken if taken > 0 else float(self._free > 0) * 2.0

    def _status(self, name: str) -> int:
        return kib_of(self.proc / "self/status", name)

    def _available(self) -> int:
        """Bytes free in the machine and below the container's limit."""
        free = kib_of(self.proc / "meminfo", "MemAvailable")
        try:
            most, used = ((self.cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
            return min(free, max(0, int(most) - int(used))) if most.isdigit() else free
        except (OSError, ValueError):
            return free


def kib_of(file: Path, name: str) -> int:
    """The bytes of a line such as `VmRSS: 12 kB`; 0 where there is none."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    found = next((line.split() for line in lines if line.startswith(f"{name}:")), None)
    return int(found[1]) * 1024 if found else 0


def room_of(weights: Iterable[Tensor]) -> Room:
    """The memory of the device that the first of these is on."""
    device = next((weight.device for weight in weights), torch.device("cpu"))
    return CudaRoom(device) if device.type == "cuda" else HostRoom()
