"""Workers that share the chunks of a rollout: any of them may take any chunk, for a chunk's answer is the same everywhere."""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from mmrl.runtime.blame import UnavailableError
from mmrl.runtime.spans import span
from mmrl.runtime.workers import WorkerError

log = logging.getLogger("mmrl")
LATE = 2.0
"""A chunk is late that takes this many times as long as the slowest that is done."""
POLL_S = 0.05
Job = tuple[object, ...]


@runtime_checkable
class Worker(Protocol):
    """A process that answers one chunk at a time, and is started again when it is asked after its death."""

    def __call__(self, *job: object) -> object:
        """The chunk's answer; WorkerError where the process died."""
        ...

    def give_up(self) -> None:
        """End the process, from any thread; who waits for it gets a WorkerError."""
        ...


@dataclass
class Board:
    """The chunks of a rollout: who has which, and what is answered."""

    jobs: Sequence[Job]
    waiting: deque[int] = field(init=False)
    holders: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Chunk -> the workers that have it."""
    begun: dict[int, float] = field(default_factory=dict[int, float])
    answers: dict[int, object] = field(default_factory=dict[int, object])
    slowest: float = 0.0
    """Seconds that the slowest answer took."""
    error: BaseException | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.waiting = deque(range(len(self.jobs)))

    @property
    def is_over(self) -> bool:
        return self.error is not None or len(self.answers) == len(self.jobs)

    def take(self, worker: int) -> int | None:
        """The next chunk for a worker, which waits for a late one of another if there is nothing else; None: all is answered."""
        with self.changed:
            while not self.is_over:
                late = self.late_chunk()
                if self.waiting or late is not None:
                    number = self.waiting.popleft() if self.waiting else late
                    assert number is not None
                    if number == late:
                        log.warning("sampler %d is late: sampler %d draws its chunk too", self.holders[number][0], worker)
                    self.holders.setdefault(number, []).append(worker)
                    self.begun.setdefault(number, time.monotonic())
                    return number
                self.changed.wait(POLL_S)
            return None

    def late_chunk(self) -> int | None:
        """A chunk of one worker alone that takes too long."""
        now, most = time.monotonic(), LATE * self.slowest
        alone = [n for n, holders in self.holders.items() if n not in self.answers and len(holders) == 1]
        return next((n for n in alone if self.answers and now - self.begun[n] > most), None)

    def put(self, number: int, answer: object) -> None:
        """The first answer counts; a second one is the same."""
        with self.changed:
            if number not in self.answers:
                self.slowest = max(self.slowest, time.monotonic() - self.begun[number])
                self.answers[number] = answer
            self.changed.notify_all()

    def lose(self, number: int, worker: int) -> None:
        """A worker died over a chunk, which goes to others."""
        with self.changed:
            self.holders[number].remove(worker)
            if not self.holders[number] and number not in self.answers:
                del self.holders[number], self.begun[number]
                self.waiting.appendleft(number)
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()


class Crew:
    """Some workers, each asked by a thread of its own.

    Args:
        restarts: how often, all together, one that died may be started again.
    """

    def __init__(self, workers: Sequence[Worker], restarts: int) -> None:
        self.workers, self.restarts = workers, restarts
        self.is_left = False
        """Nothing waits for answers any more."""
        self._board: Board | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        for number in range(len(workers)):
            threading.Thread(target=self._work, args=(number,), name=f"sampler-{number}", daemon=True).start()

    def ask(self, jobs: Sequence[Job]) -> list[object]:
        """The answers of all chunks, in their order.

        Raises:
            UnavailableError: workers died more often than they are started again, or `leave` was called.
        """
        board = Board(jobs)
        with self._changed:
            if self.is_left:
                raise UnavailableError("nothing waits for its samples any more")
            self._board = board
            self._changed.notify_all()
        try:
            with board.changed:
                board.changed.wait_for(lambda: board.is_over)
        except BaseException:
            self.leave()
            raise
        if board.error is not None:
            raise board.error
        return [board.answers[i] for i in range(len(jobs))]

    def begin(self) -> None:
        """Answer again after `leave`."""
        self.is_left = False

    def leave(self) -> None:
        """Give up what is drawn, and end the processes: they are started again when they are asked again."""
        with self._changed:
            self.is_left, board = True, self._board
        if board is not None:
            board.fail(UnavailableError("nothing waits for its samples any more"))
        for worker in self.workers:
            worker.give_up()

    def close(self) -> None:
        """End processes and threads for good."""
        self.leave()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _work(self, worker: int) -> None:
        done: Board | None = None
        while True:
            with self._changed:
                while self._board is done and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                board = done = self._board
            while board is not None and (number := board.take(worker)) is not None:
                try:
                    with span("chunk"):
                        answer = self.workers[worker](*board.jobs[number])
                    board.put(number, answer)
                except WorkerError as error:
                    self._lose(board, number, worker, error)
                except BaseException as error:  # noqa: BLE001 - who asked raises it
                    board.fail(error)

    def _lose(self, board: Board, number: int, worker: int, error: WorkerError) -> None:
        if self.is_left:
            board.fail(UnavailableError("nothing waits for its samples any more"))
        elif self.restarts <= 0:
            board.fail(UnavailableError(f"sampler {worker}: {error}, and cluster.restarts allows no further start"))
        else:
            self.restarts -= 1
            log.warning("sampler %d: %s; it is started again, %d more time(s) after this", worker, error, self.restarts)
            board.lose(number, worker)
