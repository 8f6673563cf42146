"""SIGTERM (a cluster takes the machine away), Ctrl-C, and SIGHUP (the terminal closes): the run saves and ends well."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType

from mmrl.runtime.blame import AskedToLeaveError
from mmrl.training.stopping import Stop

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LEAVING = (signal.SIGTERM, signal.SIGHUP)
"""What ends a program that does not listen without a word; Ctrl-C raises KeyboardInterrupt."""
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
        elif self.stop.asked_by and number == signal.SIGHUP:
            # kernel and shell each send one when a terminal closes, systemd one with its SIGTERM: no sign of impatience
            return
        elif self.stop.asked_by in (signal.SIGTERM.name, signal.SIGINT.name):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        else:
            # the interrupted code may hold any lock of logging or the terminal
            text = f"\n{name}: stopping after what cannot be undone, then saving; once more to leave at once\n"
            with suppress(OSError):
                os.write(2, text.encode())
        if self.stop.ask(name, frame):
            self.retries += 1
            again = threading.Timer(AGAIN_S, self.send_again, (number,))
            again.daemon = True
            again.start()

    def send_again(self, number: int) -> None:
        """Interrupt the main thread once more, unless the run has ended meanwhile: the next handler may be the one that kills."""
        listens = signal.getsignal(number) is self
        if listens and (main := threading.main_thread().ident) is not None:
            signal.pthread_kill(main, number)


def listen(stop: Stop) -> AbstractContextManager[None]:
    """Turn signals into requests to `stop`, in the main thread.

    SIGHUP stays ignored where it was when the program started, as under nohup.
    """
    return handled([number for number in NUMBERS if number != signal.SIGHUP or not is_ignored(number)], Listener(stop))


def leave_in_order() -> AbstractContextManager[None]:
    """While a run is built, with nothing to save yet: signals that end the program raise AskedToLeaveError, and it tidies up."""
    return handled([number for number in LEAVING if not is_ignored(number)], leave)


@contextmanager
def handled(numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Give signals to a handler; only in the main thread, for Python allows no handlers elsewhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, signal.SIG_DFL if usual is None else usual)


def leave(number: int, frame: FrameType | None) -> None:
    """Raises AskedToLeaveError with the exit code that shells give a program ended by this signal."""
    raise AskedToLeaveError(128 + number)


def is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN
