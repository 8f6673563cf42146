"""Goes through rows in order while threads look at the files of the next ones."""

import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Generic, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
R = TypeVar("R")
DEPTH = 256
"""Items that are looked at before their turn."""
MOST = 2**17
"""Most files that a memory keeps facts about; the least recently used are dropped first."""
RACY_NS = 2 * 10**9
"""A file may change twice within one tick of its clock, so what was written in the last two seconds is looked at again."""


@runtime_checkable
class Watch(Protocol):
    """Passes items on and sees them go by, as a progress bar does."""

    def __call__(self, items: Iterable[T], /) -> Iterable[T]: ...


def same(items: Iterable[T]) -> Iterable[T]:
    """The items, without a watcher."""
    return items


def ahead(items: Iterable[T], work: Callable[[T], R]) -> Iterator[tuple[T, Callable[[], R]]]:
    """Every item in order, with a call that gives `work(item)` or raises what it raised; `work` runs in threads.

    At most `DEPTH` items are taken before they are needed. An error of `items` itself is raised after the items before it.
    """
    waiting: deque[tuple[T, Future[R]]] = deque()
    failed: Exception | None = None
    pool = ThreadPoolExecutor(thread_name_prefix="mmrl-data")
    try:
        try:
            for item in items:
                waiting.append((item, pool.submit(work, item)))
                if len(waiting) > DEPTH:
                    first, answer = waiting.popleft()
                    yield first, answer.result
        except Exception as error:  # noqa: BLE001 - raised again in its turn
            failed = error
        while waiting:
            first, answer = waiting.popleft()
            yield first, answer.result
        if failed is not None:
            raise failed
    finally:
        pool.shutdown(cancel_futures=True)


class FileMemory(Generic[T]):
    """Facts about files, each valid until its file changes; threads that ask at the same time share one look."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, ...], T] = OrderedDict()
        self._asked: dict[tuple[int, ...], Future[T]] = {}
        self._lock = Lock()

    def __call__(self, path: str | Path, find_out: Callable[[], T]) -> T:
        """The answer that `find_out()` gives or gave for this file; errors are not remembered."""
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return find_out()
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        mine: Future[T] = Future()
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            asked = self._asked.setdefault(key, mine)
        if asked is not mine:
            return find_out() if asked.exception() is not None else asked.result()
        try:
            found = find_out()
        except BaseException as error:
            with self._lock:
                del self._asked[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._asked[key]
            if time.time_ns() - status.st_mtime_ns > RACY_NS:
                self._known[key] = found
                if len(self._known) > MOST:
                    self._known.popitem(last=False)
        mine.set_result(found)
        return found
