"""How many positions a forward and backward pass takes: as the settings say, or as many as fit the memory that there is."""

import gc
import json
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.hooks import PolicyHooks, with_hooks
from mmrl.core.protocols import Policy, State
from mmrl.core.ranks import Ranks
from mmrl.core.types import Batch
from mmrl.runtime.disk import whole_file
from mmrl.training.stopping import TrainingStoppedError

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


T = TypeVar("T")
log = logging.getLogger("mmrl")
START, LEAST, MOST = 2048, 64, 2**24
"""The first size of "auto", in positions; sizes below LEAST are not tried, and growth stops at MOST."""
FILL = 0.85
"""Share of the free memory that the next size may be expected to fill."""
BELOW = 0.75
"""The largest size that is tried after one that did not fit, as a share of that one."""


@dataclass
class MicroBatches:
    """Cuts batches, and finds out how large their parts may be. The gradient does not depend on it, apart from rounding.

    "auto" begins with START positions (or with what a run of the same config found on this device), and after every update
    grows to twice as many where memory, as measured, has room for them. Out of memory, one process halves the size and does the
    piece of work again; several, which wait for each other, stop with a sentence, and the next run begins with half.
    """

    policy: Policy
    algorithm: Algorithm
    setting: int | Literal["auto"]
    ranks: Ranks
    notes: Path | None = None
    """The file where sizes are remembered; None remembers nothing."""
    room: Room | None = None
    """None: that of the device the policy's weights are on."""
    size: int = field(init=False)
    too_large: int = field(default=MOST, init=False)
    """The smallest size that did not fit."""

    def __post_init__(self) -> None:
        self.size = START if self.setting == "auto" else self.setting
        if self.is_auto:
            self.room = self.room or room_of(self.policy.parameters())
            self.load_state_dict(self.ranks.gather(self._remembered())[0])

    @property
    def is_auto(self) -> bool:
        return self.setting == "auto"

    @property
    def turns(self) -> int:
        """Micro-batches in a row of which this process has one that is its own."""
        return with_hooks(self.policy, PolicyHooks).turns if self.ranks.world > 1 else 1

    def cut(self, batch: Batch) -> list[Batch]:
        """The batch as micro-batches, equally many on every rank; those added to a rank have no share in the loss."""
        parts = list(self.policy.split(batch, self.size, self.algorithm.scope))
        idle = replace(parts[-1], share=torch.zeros_like(parts[-1].share))
        turns = self.turns
        if turns > 1:
            nothing = torch.zeros_like(idle.rollouts.action_mask)
            idle = replace(idle, rollouts=replace(idle.rollouts, action_mask=nothing))
        parts += [idle] * (self.ranks.most(len(parts)) - len(parts))
        before = [idle] * (self.ranks.rank % turns)
        return [one for part in parts for one in (*before, part, *[idle] * (turns - 1 - len(before)))]

    def fit(self, work: Callable[[], T], grow: bool = False) -> T:
        """The result of work that cuts by `size`; done again with a smaller one for as long as memory runs out.

        Args:
            grow: this work is what fills memory most, so the next may be larger if there was room.

        Raises:
            TrainingStoppedError: the smallest size does not fit, or there are several processes.
            torch.OutOfMemoryError: the size is a number in the config.
        """
        if self.room is None:
            return work()
        while True:
            self.room.begin()
            try:
                done = work()
            except torch.OutOfMemoryError as error:
                message = str(error).split("\n", maxsplit=1)[0]
            else:
                if grow:
                    self._grow()
                return done
            # The traceback holds on to the failed work's tensors until here.
            self._shrink(message)

    def state_dict(self) -> State:
        """The sizes that a resumed run begins with, so that it cuts as this one would have; empty for a number in the config."""
        return {"size": self.size, "too_large": self.too_large} if self.is_auto else {}

    def load_state_dict(self, state: State) -> None:
        if state and self.is_auto:
            self.size, self.too_large = int(state["size"]), int(state["too_large"])

    def _grow(self) -> None:
        assert self.room is not None
        fits = min(self.ranks.gather(self.room.times_more(FILL)))
        wanted = min(2 * self.size, int(fits * self.size), int(BELOW * self.too_large), MOST)
        if wanted > 1.1 * self.size:
            self.size = wanted
            self._remember()

    def _shrink(self, message: str) -> None:
        self.too_large, self.size = self.size, self.size // 2
        self._remember()
        if self.ranks.world > 1 or self.size < LEAST:
            what = (
                "several processes cannot go back together: start again with --resume, which begins with half"
                if self.ranks.world > 1
                else "smaller ones are not tried: shorten prompts or completions, set policy.gradient_checkpointing = true, or "
                "train less with [policy.lora]"
            )
            raise TrainingStoppedError(
                f'micro_batch = "auto" ran out of memory with {self.too_large} positions ({message}), and {what}'
            )
        log.warning("out of memory with micro-batches of %d positions; going on with %d", self.too_large, self.size)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _remembered(self) -> State:
        try:
            found = json.loads(self.notes.read_text()) if self.notes is not None and self.notes.is_file() else {}
            state = {name: int(found[name]) for name in ("size", "too_large")} if found else {}
        except (OSError, ValueError, KeyError, TypeError):
            # Half a file of another process, or somebody's edit: it is found out anew.
            return {}
        return state if state and LEAST <= state["size"] <= MOST else {}

    def _remember(self) -> None:
        if self.notes is None or not (self.ranks.is_main or self.ranks.world > 1):
            return
        try:
            self.notes.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self.notes) as written:
                written.write_text(json.dumps(self.state_dict()))
        except OSError as error:
            log.warning("the size of micro-batches could not be kept in %s: %s", self.notes, error)
