"""Processes that end with the one that starts them, however it ends. Standard library only."""

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache

Start = Callable[[], "subprocess.Popen[bytes]"]
_SET_DEATH_SIGNAL = 1


def started(start: Start) -> "subprocess.Popen[bytes]":
    """The process that `start` makes, which is to call `end_with`: the kernel would end it with the thread that made it, so one
    makes all that never ends.
    """
    future = Future["subprocess.Popen[bytes]"]()
    _jobs(os.getpid()).put((future, start))
    return future.result()


def end_with(parent: int) -> bool:
    """Let the kernel kill this process when `parent` ends, even where it hangs in a call; False where it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    return os.getppid() == parent


@cache
def _jobs(process: int) -> "queue.SimpleQueue[tuple[Future[subprocess.Popen[bytes]], Start]]":
    """Of the thread that starts processes; one that forked off has the queue, but not the thread."""
    jobs = queue.SimpleQueue[tuple[Future["subprocess.Popen[bytes]"], Start]]()

    def work() -> None:
        while True:
            future, start = jobs.get()
            try:
                future.set_result(start())
            except BaseException as error:  # noqa: BLE001 - who asked raises it
                future.set_exception(error)

    # a daemon: the thread of an executor would end, and with it the processes, before what is registered with atexit
    threading.Thread(target=work, name="mmrl-starter", daemon=True).start()
    return jobs
