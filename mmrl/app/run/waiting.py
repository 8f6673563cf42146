"""A line about what is being waited for, so that nobody looks at a silent terminal: "loading model Qwen/... ...".

The command line prints what the logger `mmrl.loading` says, on the main process alone.
"""

import logging
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

PATIENCE_S = 0.7
"""What takes no longer is not worth a line."""
log = logging.getLogger("mmrl.loading")


class Wait:
    """Something that may take long, told of once it has: `Wait("loading model m").begin()`, later `.end()`."""

    def __init__(self, what: str) -> None:
        self.what, self.began, self.is_told = what, 0.0, False
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        self.began = time.monotonic()
        if PATIENCE_S <= 0:
            self._tell()
            return
        self._timer = threading.Timer(PATIENCE_S, self._tell)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Say how long it took, where its beginning was told of; safe to call twice, and before `begin`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        seconds = time.monotonic() - self.began
        if self.is_told and seconds >= 10:
            log.info("%s took %.0f s", self.what, seconds)
        self.is_told = False

    def _tell(self) -> None:
        self.is_told = True
        log.info("%s ...", self.what)


@contextmanager
def waiting(what: str) -> Generator[None]:
    """Enclose what may take long: `with waiting("loading model Qwen/Qwen2.5-VL-3B-Instruct"): ...`."""
    wait = Wait(what)
    wait.begin()
    try:
        yield
    finally:
        wait.end()


start = Wait("loading libraries")
"""From the first word of the command to where its work begins."""
