"""Stopping a run on request, at a moment from which it can go on exactly.

Weights move in a step's updates only. While prompts are sampled, scored and read, and while held-out ones are evaluated, a
request is followed at once: the work is thrown away, and the state saved is the one from before it. Updates are finished first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mmrl.core.ranks import Ranks
from mmrl.runtime.blame import AskedToLeaveError

ON_THE_WAY = frozenset({"__enter__", "__exit__"})
"""Functions that put something in place or back, such as averaged weights: nothing is broken off inside of them."""


class AskedToStopError(AskedToLeaveError):
    """Leaves a step or an evaluation whose work is thrown away."""


class Stop:
    """A request to stop the run, and the moments at which it can be followed."""

    def __init__(self) -> None:
        self.asked_by = ""
        """A signal's name; empty: no one asked."""
        self.is_open = False
        """True where the work that goes on may be thrown away."""

    def ask(self, name: str, frame: FrameType | None = None) -> bool:
        """Ask, or ask again; True if it was too soon and should be asked again in a moment.

        Args:
            frame: what the signal interrupted.

        Raises:
            AskedToStopError: the run can stop now.
        """
        self.asked_by = name
        if not self.is_open:
            return False
        while frame is not None:
            if frame.f_code.co_name in ON_THE_WAY:
                return True
            frame = frame.f_back
        raise AskedToStopError(name)

    @contextmanager
    def interruptible(self, ranks: Ranks) -> Iterator[None]:
        """Follow a request at once while inside; of several processes, only here at the beginning, and by all of them.

        Raises:
            AskedToStopError: any of them was asked.
        """
        asked = [name for name in ranks.gather(self.asked_by) if name]
        if asked:
            self.asked_by = asked[0]
            raise AskedToStopError(asked[0])
        self.is_open = ranks.world == 1
        try:
            yield
        finally:
            self.is_open = False
