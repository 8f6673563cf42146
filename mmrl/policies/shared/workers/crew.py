"""Workers that share jobs, such as the chunks of a rollout, any of which each may take; and jobs begun before they are needed."""

import logging
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from mmrl.runtime.blame import UnavailableError
from mmrl.runtime.spans import span
from mmrl.runtime.workers import SilentError, WorkerError

log = logging.getLogger("mmrl")
LATE = 2.0
"""A job is late that takes this many times as long as the slowest that is done."""
STILL, LEAST_S = 10.0, 60.0
"""A worker stands still that takes this many times as long as any did before, in whatever rollout, and as many seconds."""
POLL_S = 0.05
Job = tuple[object, ...]
Death = WorkerError | SilentError
Again = Callable[[int, Death, int], None]
"""(worker, how it died, how many have died over its job) -> the job is done again; what it raises is the job's error."""


@runtime_checkable
class Worker(Protocol):
    """A process that answers one job at a time, and is started again when it is asked after its death."""

    def __call__(self, *job: Any, **options: Any) -> object:
        """The job's answer; WorkerError where the process died, SilentError where it was killed after `timeout_s` seconds."""
        ...

    def give_up(self) -> None:
        """End the process, from any thread; who waits for it gets a WorkerError."""
        ...

    def close(self) -> None:
        """End the process for good, from the thread that asked it."""
        ...


@dataclass
class Restarts:
    """Samplers that died are started again, so many times all together."""

    left: int

    def __call__(self, worker: int, error: Death, deaths: int) -> None:
        """Raise UnavailableError where none is left."""
        if self.left <= 0:
            raise UnavailableError(f"sampler {worker}: {error}, and cluster.restarts allows no further start")
        self.left -= 1
        log.warning("sampler %d: %s; it is started again, %d more time(s) after this", worker, error, self.left)


@dataclass(eq=False)
class Board:
    """Jobs that were given together: who has which, and what is answered. All but `wait` and `drop` is under the crew's lock."""

    jobs: Sequence[Job]
    changed: threading.Condition
    waiting: deque[int] = field(init=False)
    holders: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Job -> the workers that have it."""
    begun: dict[int, float] = field(default_factory=dict[int, float])
    answers: dict[int, object] = field(default_factory=dict[int, object])
    slowest: float = 0.0
    """Seconds that the slowest answer took."""
    deaths: Counter[int] = field(default_factory=Counter[int])
    """Job -> how many workers died over it."""
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.waiting = deque(range(len(self.jobs)))

    @property
    def is_over(self) -> bool:
        return self.error is not None or len(self.answers) == len(self.jobs)

    def wait(self) -> list[Any]:
        """The answers of all jobs, in their order; raises what went wrong with one."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_over)
        if self.error is not None:
            raise self.error
        return [self.answers[i] for i in range(len(self.jobs))]

    def take(self, worker: int) -> int | None:
        """The next job for a worker, or a late one of another, if there is either."""
        # of one worker alone that takes too long
        now, alone = time.monotonic(), [n for n, own in self.holders.items() if n not in self.answers and len(own) == 1]
        late = next((n for n in alone if self.answers and now - self.begun[n] > LATE * self.slowest), None)
        number = self.waiting.popleft() if self.waiting else late
        if number is not None:
            if number == late:
                log.warning("sampler %d is late: sampler %d draws its chunk too", self.holders[number][0], worker)
            self.holders.setdefault(number, []).append(worker)
            self.begun.setdefault(number, time.monotonic())
        return number

    def put(self, number: int, answer: object) -> None:
        """The first answer counts; a second one is the same."""
        if number not in self.answers:
            self.slowest = max(self.slowest, time.monotonic() - self.begun[number])
            self.answers[number] = answer

    def lose(self, number: int, worker: int) -> None:
        """A worker died over a job, which goes to others."""
        self.holders[number].remove(worker)
        if not self.holders[number] and number not in self.answers:
            del self.holders[number], self.begun[number]
            self.waiting.appendleft(number)

    def fail(self, error: BaseException) -> None:
        self.error = self.error or error

    def drop(self) -> None:
        """Let no worker begin with it any more: nobody waits."""
        with self.changed:
            self.fail(gone())


class Crew:
    """Some workers, each asked by a thread of its own.

    Args:
        again: what becomes of a job over which a worker died.
        is_timed: a worker that stands still is ended, and has died; those of others have limits of their own.
        name: what the threads are called, with a number.
    """

    def __init__(self, workers: Sequence[Worker], again: Again, name: str = "sampler", is_timed: bool = False) -> None:
        self.workers, self.again, self.is_timed = workers, again, is_timed
        self.is_left = False
        """Nothing waits for answers any more."""
        self._boards: list[Board] = []
        self._slowest_s = 0.0
        """Of all answers so far, the first of which takes in how long a model loads, and of waits for those that were silent."""
        self._is_closed = False
        self._changed = threading.Condition()
        for number in range(len(workers)):
            threading.Thread(target=self._work, args=(number,), name=f"{name}-{number}", daemon=True).start()

    def begin_jobs(self, jobs: Sequence[Job]) -> Board:
        """Let workers begin with these jobs, after those that were given before.

        Raises:
            UnavailableError: `leave` was called.
        """
        board = Board(jobs, self._changed)
        with self._changed:
            if self.is_left:
                raise gone()
            self._boards.append(board)
            self._changed.notify_all()
        return board

    def ask(self, jobs: Sequence[Job]) -> list[Any]:
        """The answers of all jobs, in their order; who stops waiting for them leaves.

        Raises:
            UnavailableError: workers died more often than they are started again, or `leave` was called.
        """
        board = self.begin_jobs(jobs)
        try:
            return board.wait()
        finally:
            if not board.is_over:
                self.leave()

    def begin(self) -> None:
        """Answer again after `leave`."""
        self.is_left = False

    def leave(self) -> None:
        """Give up what is under way, and end the processes: they are started again when they are asked again."""
        with self._changed:
            self.is_left = True
            for board in self._boards:
                board.fail(gone())
            self._changed.notify_all()
        for worker in self.workers:
            worker.give_up()

    def close(self) -> None:
        """End processes and threads for good."""
        self._is_closed = True
        self.leave()

    def _work(self, worker: int) -> None:
        # an answer is held by nobody here while the next job is waited for
        while self._do_next(worker):
            pass
        self.workers[worker].close()

    def _do_next(self, worker: int) -> bool:
        """Do the next job; False: the crew is closed."""
        if (taken := self._take(worker)) is None:
            return False
        board, number = taken
        error: BaseException | None = None
        answer: object = None
        # one that is timed stands still after so long; before the first answer nobody knows
        limit_s = max(STILL * self._slowest_s, LEAST_S) if self._slowest_s else None
        begun, options = time.monotonic(), {"timeout_s": limit_s} if self.is_timed else {}
        try:
            with span("chunk"):
                answer = self.workers[worker](*board.jobs[number], **options)
        except BaseException as raised:  # noqa: BLE001 - who asked raises it
            error = raised
        with self._changed:
            if error is None or (isinstance(error, SilentError) and error.stopped_by is None):
                # one that was only slow, as where completions grew longer, is given more time when it is asked again
                self._slowest_s = max(self._slowest_s, time.monotonic() - begun)
            self._note(board, number, worker, answer, error)
            self._changed.notify_all()
        return True

    def _take(self, worker: int) -> tuple[Board, int] | None:
        """A job; None: the crew is closed."""
        with self._changed:
            while not self._is_closed:
                self._boards = [board for board in self._boards if not board.is_over]
                if (found := self._free(worker)) is not None:
                    return found
                self._changed.wait(POLL_S if self._boards else None)
            return None

    def _free(self, worker: int) -> tuple[Board, int] | None:
        """A job that may begin; apart from who waits, so that a waiting worker holds no board."""
        for board in self._boards:
            if (number := board.take(worker)) is not None:
                return board, number
        return None

    def _note(self, board: Board, number: int, worker: int, answer: object, error: BaseException | None) -> None:
        if error is None:
            board.put(number, answer)
        elif not isinstance(error, Death):
            board.fail(error)
        elif self.is_left or board.error is not None:
            board.fail(gone())
        else:
            board.deaths[number] += 1
            try:
                self.again(worker, error, board.deaths[number])
                board.lose(number, worker)
            except Exception as final:  # noqa: BLE001 - likewise
                board.fail(final)


def gone() -> UnavailableError:
    return UnavailableError("nothing waits for its samples any more")


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
