"""Code of others, called in threads and in an event loop, with time limits; and the values that it answers."""

import asyncio
import contextlib
import inspect
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextvars import copy_context
from itertools import islice
from math import inf

import torch

from mmrl.runtime.blame import Foreign, describe, is_from_outside, note_own
from mmrl.runtime.net.clocks import LEAST_S, timed
from mmrl.runtime.net.loops import contain


class Threads:
    """Daemon threads that work off a queue, begun as jobs come: one that hangs does not keep the program from ending."""

    def __init__(self, count: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[Foreign], Callable[[], Foreign]]] = queue.SimpleQueue()
        self._names = deque(f"{name}-{i}" for i in range(count))
        self._free, self._beginning = threading.Semaphore(0), threading.Lock()

    def submit(self, job: Callable[[], Foreign]) -> Future[Foreign]:
        future: Future[Foreign] = Future()
        self._jobs.put((future, job))
        with self._beginning:
            if not self._free.acquire(blocking=False) and self._names:
                # CUDA's current device belongs to the thread: a new one would start on the first
                device = torch.cuda.current_device() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
                threading.Thread(target=self._work, args=(device,), name=self._names.popleft(), daemon=True).start()
        return future

    def _work(self, device: int | None) -> None:
        if device is not None:
            torch.cuda.set_device(device)
        while True:
            settle(*self._jobs.get())
            if self._jobs.empty():
                self._free.release()


def settle(future: Future[Foreign], job: Callable[[], Foreign]) -> None:
    """Put the job's answer into the future, or whatever it raised."""
    try:
        future.set_result(job())
    except BaseException as error:
        if is_from_outside(error):
            raise
        note_own(error)
        future.set_exception(error)


def outcome_of(future: Future[Foreign]) -> Foreign:
    """The answer, or what was raised instead."""
    try:
        error = future.exception()
    except CancelledError as cancelled:
        return cancelled
    return future.result() if error is None else error


def result_of(future: Future[Foreign], timeout_s: float | None = None) -> Foreign:
    """The answer; `Future.result` would take an exception that is false for none."""
    error = future.exception(timeout_s)
    if error is not None:
        raise error
    return future.result()


def first_of(answer: Foreign, count: int) -> Foreign:
    """The first values of an iterator, one more than `count` at most; anything else as it is."""
    return list(islice(answer, count + 1)) if isinstance(answer, Iterator) else answer


def within(timeout_s: float, job: Callable[[], Foreign]) -> Foreign:
    """The job's answer; TimeoutError when it takes longer, in which case its thread is abandoned.

    Time in which it waits for a server that is away does not count: the client has a deadline of its own for that.
    """
    future: Future[Foreign] = Future()
    device = torch.cuda.current_device() if torch.cuda.is_available() and torch.cuda.is_initialized() else None

    def run() -> None:
        with torch.no_grad(), torch.cuda.device(device) if device is not None else contextlib.nullcontext():
            settle(future, job)

    with timed() as clock:
        threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
    while not future.done() and (left_s := timeout_s - clock.seconds()) > 0:
        wait([future], max(left_s, LEAST_S))
    if future.done():
        return result_of(future)
    raise TimeoutError(f"no answer within {timeout_s} s")


async def wait_within(answer: Awaitable[Foreign], timeout_s: float | None) -> Foreign:
    """The answer; TimeoutError when it takes longer, as `within`, even if the coroutine refuses to be cancelled."""
    with timed() as clock:
        task = asyncio.ensure_future(contain(answer))
    while not task.done() and (left_s := inf if timeout_s is None else timeout_s - clock.seconds()) > 0:
        await asyncio.wait({task}, timeout=None if timeout_s is None else max(left_s, LEAST_S))
    if task.done():
        return task.result()
    task.cancel()
    task.add_done_callback(lambda late: late.cancelled() or late.exception())
    raise TimeoutError(f"no answer within {timeout_s} s")


def is_coroutine(function: object) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - a callable object's method is asked, not whether it is callable
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def number(value: Foreign) -> float:
    """Raises TypeError for what is no number, whatever its own code raises."""
    try:
        return float(value)
    except BaseException as error:
        if is_from_outside(error):
            raise
        raise TypeError(describe(error)) from error
