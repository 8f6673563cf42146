"""The time of a call, without that in which a client within it waits for a server that is away. Standard library only."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class CallClock:
    """Stands still while anything in its call, in whatever thread, waits for a server."""

    def __init__(self) -> None:
        self._begun, self._waited, self._since = time.monotonic(), 0.0, 0.0
        self._waiting, self._lock = 0, threading.Lock()

    def seconds(self) -> float:
        with self._lock:
            now = time.monotonic()
            return now - self._begun - self._waited - (now - self._since if self._waiting else 0.0)

    def wait(self, by: int) -> None:
        """So many more wait, or fewer."""
        with self._lock:
            now = time.monotonic()
            if self._waiting:
                self._waited += now - self._since
            self._waiting, self._since = self._waiting + by, now


_RUNNING: ContextVar[tuple[CallClock, ...]] = ContextVar("clocks", default=())


@contextmanager
def timed() -> Iterator[CallClock]:
    """A block whose calls, also in threads that are given a copy of its context, are timed by a new clock and those outside."""
    clock = CallClock()
    token = _RUNNING.set((*_RUNNING.get(), clock))
    try:
        yield clock
    finally:
        _RUNNING.reset(token)


@contextmanager
def away() -> Iterator[None]:
    """A block that waits for a server that is away."""
    clocks = _RUNNING.get()
    for clock in clocks:
        clock.wait(1)
    try:
        yield
    finally:
        for clock in clocks:
            clock.wait(-1)
