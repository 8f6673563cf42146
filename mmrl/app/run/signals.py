"""SIGTERM, as clusters send it before they take a machine away, and Ctrl-C: the run saves and ends well."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mmrl.training.stopping import Stop

NUMBERS = (signal.SIGTERM, signal.SIGINT)
AGAIN_S = 0.02


class Listener:
    """A handler of signals: the first asks to stop, the second ends the process at once."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop
        self.retries = 0
        """Signals on their way that this process sent itself, for the moment before was no good one."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.retries:
            self.retries -= 1
        elif self.stop.asked_by:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        else:
            # the interrupted code may hold any lock of logging or the terminal
            os.write(2, f"\n{name}: stopping after what cannot be undone, then saving; once more to leave at once\n".encode())
        if self.stop.ask(name, frame):
            self.retries += 1
            again = threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, number))
            again.daemon = True
            again.start()


@contextmanager
def listen(stop: Stop) -> Iterator[None]:
    """Turn SIGTERM and Ctrl-C into requests to `stop`; only in the main thread, for Python allows no handlers elsewhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listener = Listener(stop)
    before = {number: signal.signal(number, listener) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
