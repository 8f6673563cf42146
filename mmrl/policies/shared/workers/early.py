"""Jobs that workers begin before their answers are needed, such as the media of the next step."""

import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from mmrl.policies.shared.workers.crew import Board, Crew, Job


@dataclass(eq=False)
class Early:
    """Answers by key, begun before they are asked for and given once, from any thread."""

    start: Callable[[], Crew]
    """Makes the workers, at the first job."""
    most: float = float("inf")
    """Bytes of answers that may wait to be taken."""
    begun: dict[Hashable, tuple[Board, int]] = field(default_factory=dict[Hashable, tuple[Board, int]], init=False)
    """Key -> the board of its one job, and the bytes of the answer."""
    crew: Crew | None = field(default=None, init=False)
    _waiting: dict[Hashable, tuple[Job, int]] = field(default_factory=dict[Hashable, tuple[Job, int]], init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)

    def ask(self, jobs: Mapping[Hashable, tuple[Job, int]]) -> None:
        """Begin with jobs, each with the bytes of its answer, in order and as room allows, in place of those that were to begin.

        Where room is short, what was begun and is not asked for again is given up.
        """
        with self._lock:
            self._waiting = {key: job for key, job in jobs.items() if key not in self.begun and job[1] <= self.most}
            self._go_on([key for key in self.begun if key not in jobs])

    def take(self, key: Hashable) -> Board | None:
        """The job that was begun for this key, which is forgotten."""
        with self._lock:
            self._waiting.pop(key, None)
            board, _ = self.begun.pop(key, (None, 0))
            self._go_on()
            return board

    def begin(self, *job: object) -> Board:
        """Let a worker begin with a job at once; its answer is the board's only one."""
        with self._lock:
            if self.crew is None:
                self.crew = self.start()
                weakref.finalize(self, self.crew.close)
            return self.crew.begin_jobs([job])

    def _go_on(self, idle: Sequence[Hashable] = ()) -> None:
        spare = iter(idle)
        while self._waiting:
            key, (job, size) = next(iter(self._waiting.items()))
            if sum(size for _, size in self.begun.values()) + size <= self.most:
                del self._waiting[key]
                self.begun[key] = self.begin(*job), size
            elif (old := next(spare, None)) is not None:
                self.begun.pop(old)[0].drop()
            else:
                return
