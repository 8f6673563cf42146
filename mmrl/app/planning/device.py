"""The device that a run is fitted to: a given card, the smallest one of this machine, or the machine's own memory."""

import os
from dataclasses import dataclass
from pathlib import Path

from mmrl.app.planning.memory import CONTEXT, GIB, Memory, room, usable

LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with a container's memory limit."""
SHARE = 0.85
"""Share of a machine's memory that a run may take, since other programs need some too."""


@dataclass(frozen=True)
class Device:
    """One card, or one process's share of a machine without cards: `Device(24 * GIB, True, "a card of 24.0 GiB")`."""

    size: int
    """Bytes."""
    is_card: bool
    name: str

    @property
    def usable(self) -> int:
        """Bytes that a run's own tensors may take."""
        return usable(self.size) if self.is_card else int(self.size * SHARE)

    def use_of(self, memory: Memory) -> int:
        """Bytes that a run takes here, at most."""
        return memory.peak if self.is_card else memory.resident

    def need_of(self, memory: Memory) -> int:
        """The same, with what CUDA itself takes."""
        return self.use_of(memory) + (CONTEXT if self.is_card else 0)

    def fits(self, memory: Memory) -> bool:
        return self.use_of(memory) <= self.usable


def target_device(card: str | None, processes: int = 1) -> Device:
    """The device of a run: a card such as 24GB or RTX 4090 (else ValueError), or this machine's, shared by n processes."""
    size = room(card)
    if size is not None:
        said = "from --card" if card is not None else "this machine's smallest"
        return Device(size, True, f"a card of {size / GIB:.1f} GiB ({said})")
    share = machine_memory() // processes
    each = "" if processes == 1 else f", {share / GIB:.1f} GiB for each of {processes} processes"
    return Device(share, False, f"this machine's memory of {machine_memory() / GIB:.1f} GiB (no card){each}")


def machine_memory() -> int:
    """Bytes of this machine's memory, or of the container's share of it."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in LIMITS:
        text = file.read_text().strip() if file.is_file() else ""
        found += [int(text)] if text.isdigit() else []
    return min(found)
