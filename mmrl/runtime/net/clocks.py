"""The time of a call, without that in which a client within it waits for a server that is away. Standard library only."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LEAST_S = 0.05
"""Between two looks at a clock that stands still."""


class CallClock:
    """Stands still while anything in its call, in whatever thread, waits for a server.

    Args:
        tell: hears that such a wait begins (True), and that none is left (False).
    """

    def __init__(self, tell: Callable[[bool], object] = bool) -> None:
        self.tell = tell
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
            before, self._waiting, self._since = self._waiting, self._waiting + by, now
            if bool(before) != bool(self._waiting):
                self.tell(bool(self._waiting))

    def hush(self) -> None:
        """Tell nobody what its threads do from here on."""
        with self._lock:
            self.tell = bool


_RUNNING: ContextVar[tuple[CallClock, ...]] = ContextVar("clocks", default=())


@contextmanager
def timed(tell: Callable[[bool], object] = bool) -> Iterator[CallClock]:
    """A block whose calls, also in threads that are given a copy of its context, are timed by a new clock and those outside."""
    clock = CallClock(tell)
    token = _RUNNING.set((*_RUNNING.get(), clock))
    try:
        yield clock
    finally:
        clock.hush()
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
