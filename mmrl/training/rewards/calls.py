"""How a reward is called: where, on how many groups at a time, with which timeout and retries; and on which device it waits."""

import asyncio
import inspect
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch

from mmrl.core.samples import Group
from mmrl.runtime.calls import Threads, first_of, is_coroutine, result_of, settle, wait_within, within
from mmrl.runtime.net.loops import loop
from mmrl.runtime.process_state import process_state, refuse_change
from mmrl.runtime.ranges import CountOrNone, NonNegative, Number, Range, check_ranges
from mmrl.runtime.workers import NEVER_AGAIN, WorkerProcess
from mmrl.training.rewards.cache import AnswerCache, Known, RawAnswer

ASYNC_LIMIT = 64
MOST_PAUSE_S = 60.0


@dataclass(frozen=True)
class Calling:
    """How a reward is called. `call = { where = "process", workers = 4, retries = 2 }` in its table."""

    where: Literal["auto", "inline", "thread", "process"] = "auto"
    """inline: in the run's own thread, one group after the other. thread: in other threads. process: in separate processes, for
    rewards that need the processor or signals, or may hang; the reward must be picklable. auto: a thread if one helps (a timeout,
    several workers, sampling in parts), else inline. `async def` always runs in a separate event loop."""
    workers: Annotated[int, Range(0, 256)] = 0
    """Groups scored at the same time; 0: one, or 64 of an `async def`."""
    retries: Annotated[int, Range(0, 1000)] = 0
    """Number of further attempts after an exception or a timeout."""
    pause_s: NonNegative = 1.0
    """Pause before the first retry; doubled for each next one, up to a minute, and varied by a quarter."""
    cache: CountOrNone = 0
    """Number of scores to cache for repeated inputs, media compared byte by byte; the least recently used are dropped first.
    Only for deterministic rewards. 0 = none."""
    run_on: str = ""
    """The device that a reward with a method `to(device)` is moved to when a step's first group arrives; empty: not moved."""
    rest_on: str = ""
    """Where such a reward waits between steps, for example cpu; empty: it stays."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.rest_on and not self.run_on:
            raise ValueError(f"rest_on is {self.rest_on!r}, but run_on says nothing: say where the reward computes")


@dataclass(frozen=True)
class Transform:
    """clamp((r - shift) / scale, low, high); the reward as it was is logged as its part `raw`."""

    scale: Number = 1.0
    """Divides the reward, after the shift; negative values reverse it."""
    shift: Number = 0.0
    """Subtracted from the reward first."""
    low: Number | None = None
    """Lower bound of the result; None: no bound."""
    high: Number | None = None
    """Upper bound of the result; None: no bound."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.scale == 0:
            raise ValueError("transform.scale is 0, and rewards are divided by it: set another, such as 1")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"transform.low is {self.low}, above transform.high = {self.high}: exchange them")

    def __call__(self, value: float) -> float:
        moved = (value - self.shift) / self.scale
        moved = moved if self.low is None else max(moved, self.low)
        return moved if self.high is None else min(moved, self.high)


@dataclass
class Meter:
    """The cost of calling a reward since the last read-out."""

    seconds: list[float] = field(default_factory=list)
    retried: int = 0
    asked: int = 0
    """Samples looked up in the cache."""
    found: int = 0

    @classmethod
    def joined(cls, meters: Sequence["Meter"]) -> "Meter":
        """The cost on several ranks."""
        seconds = [spent for one in meters for spent in one.seconds]
        return cls(seconds, *(sum(getattr(one, name) for one in meters) for name in ("retried", "asked", "found")))


class RewardCaller:
    """One distinct reward and the way it is called. Entries of a run that are equal share one."""

    def __init__(self, name: str, function: Callable[..., RawAnswer], calling: Calling, timeout_s: float | None) -> None:
        self.name, self.function, self.calling, self.timeout_s = name, function, calling, timeout_s
        self.meter = Meter()
        self.whole_step = callable(getattr(function, "score_all", None))
        """True: asked once for all groups of a step, by its method score_all(groups)."""
        self.is_async = any(map(is_coroutine, (self._target(), getattr(function, "function", None))))
        """It is, or hands on, a coroutine."""
        self._refuse_nonsense()
        self.cache = AnswerCache(calling.cache, bool(getattr(function, "pointwise", False))) if calling.cache else None
        self.where = calling.where
        self._threads = Threads(self.workers, f"reward-{name}")
        self._processes: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        if self.where == "process":
            for _ in range(self.workers):
                self._processes.put(WorkerProcess(self._target()))
        self._moved = False
        self._lock = threading.Lock()

    @property
    def workers(self) -> int:
        return self.calling.workers or (ASYNC_LIMIT if self.is_async else 1)

    def submit(self, groups: Sequence[Group], beside: bool, is_alone: bool = True) -> Future[RawAnswer]:
        """The reward's raw answer for one group (or, of a `whole_step` one, for all), now or later.

        Args:
            beside: the run has something else to do meanwhile.
            is_alone: no other reward runs meanwhile, so that settings of the process that change are this one's doing.
        """
        if self.is_inline(beside) and not self.is_async:
            future: Future[RawAnswer] = Future()
            settle(future, lambda: self._answer_alone(groups) if is_alone else self._answer(groups))
            return future
        return self._threads.submit(lambda: self._answer(groups))

    def is_inline(self, beside: bool) -> bool:
        """Is it called in the run's own thread, so that nothing else goes on meanwhile?"""
        if self.where == "auto":
            return not (self.is_async or beside or self.timeout_s is not None or self.workers > 1)
        return self.where == "inline"

    def rest(self) -> None:
        """The step is over: back to where the reward waits."""
        with self._lock:
            if self._moved and self.calling.rest_on:
                move(self.function, self.calling.rest_on)
                self._moved = False

    def close(self) -> None:
        while not self._processes.empty():
            self._processes.get().close()

    def _answer(self, groups: Sequence[Group]) -> RawAnswer:
        self._arrive()
        start = time.perf_counter()
        try:
            with torch.no_grad():
                known = self._look(groups)
                if known is None or self.cache is None:
                    return self._with_retries(groups)
                return known.answer() if known.rest is None else self.cache.learn(known, self._with_retries([known.rest]))
        finally:
            self.meter.seconds.append(time.perf_counter() - start)

    def _answer_alone(self, groups: Sequence[Group]) -> RawAnswer:
        before = process_state()
        try:
            answer = self._answer(groups)
        except BaseException:
            before.restore()
            raise
        refuse_change(before)
        return answer

    def _look(self, groups: Sequence[Group]) -> Known | None:
        """The cache's knowledge of the one group; None without a cache."""
        if self.cache is None:
            return None
        known = self.cache.look(groups[0])
        with self._lock:
            self.meter.asked += len(groups[0].samples)
            self.meter.found += len(known.answers)
        return known

    def _with_retries(self, groups: Sequence[Group]) -> RawAnswer:
        for attempt in range(self.calling.retries + 1):
            try:
                return self._once(groups)
            except NEVER_AGAIN:
                raise
            except Exception:
                if attempt == self.calling.retries:
                    raise
            with self._lock:
                self.meter.retried += 1
            time.sleep(self._pause(attempt))
        raise AssertionError

    def _once(self, groups: Sequence[Group]) -> RawAnswer:
        argument = list(groups) if self.whole_step else groups[0]
        if self.where == "process":
            process = self._processes.get()
            try:
                return process(argument, timeout_s=self.timeout_s)
            finally:
                self._processes.put(process)
        target = self._target()

        def asked() -> RawAnswer:
            # of a generator one too many and no further: it may never end
            return first_of(target(argument), len(groups) if self.whole_step else len(groups[0].samples))

        answer = asked() if self.timeout_s is None or self.is_async else within(self.timeout_s, asked)
        if not inspect.isawaitable(answer):
            return answer
        return result_of(asyncio.run_coroutine_threadsafe(wait_within(answer, self.timeout_s), loop()))

    def _target(self) -> Callable[..., RawAnswer]:
        return getattr(self.function, "score_all") if self.whole_step else self.function  # noqa: B009 - a function has none

    def _pause(self, attempt: int) -> float:
        return min(self.calling.pause_s * 2**attempt, MOST_PAUSE_S) * JITTER.uniform(0.75, 1.25)

    def _arrive(self) -> None:
        with self._lock:
            if self.calling.run_on and not self._moved:
                move(self.function, self.calling.run_on)
                self._moved = True

    def _refuse_nonsense(self) -> None:
        start = f"reward {self.name!r}"
        if self.calling.where == "inline" and self.timeout_s is not None:
            raise ValueError(f'{start} is called inline, where nothing can stop it after timeout_s: set where = "thread"')
        if self.calling.where == "process" and (self.is_async or self.calling.run_on):
            raise ValueError(
                f"{start} is async or moved to a device, neither of which works in another process: leave `where` out"
            )
        if self.calling.run_on and not callable(getattr(self.function, "to", None)):
            raise ValueError(f"{start} has no method to(device), so run_on cannot move it: leave run_on and rest_on out")
        if self.calling.cache and (self.whole_step or getattr(self.function, "deterministic", True) is False):
            raise ValueError(f"{start} answers differently each time, or for a whole step at once: set cache = 0")


JITTER = random.Random()
"""Pauses draw from a generator of their own."""


def move(function: Any, device: str) -> None:
    function.to(device)


def is_same(a: object, b: object) -> bool:
    """True if two rewards are one object or equal data."""
    if a is b or type(a) is not type(b):
        return a is b
    try:
        return bool(a == b)
    except Exception:  # noqa: BLE001 - comparing fields (arrays, say) may raise anything; then they count as different
        return False


def nothing(group: Group) -> RawAnswer:
    """The answer of a reward that does not apply."""
    return [None] * len(group.samples)


def no_call(group: Group) -> Future[RawAnswer]:
    """The same answer, as if the reward had been called."""
    future: Future[RawAnswer] = Future()
    future.set_result(nothing(group))
    return future
