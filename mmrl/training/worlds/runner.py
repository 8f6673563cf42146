"""Calling the worlds of a run's episodes: where they live, how many at a time, with which time limit, and how often again.

A function can be an environment."""

import asyncio
import atexit
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np

from mmrl.core.episodes import Environment, Limits, World
from mmrl.core.hooks import EnvironmentHooks, with_hooks
from mmrl.core.types import Observation, Prompt, Turn
from mmrl.runtime.blame import cut, describe, is_from_outside
from mmrl.runtime.calls import Foreign, Threads, is_coroutine, result_of, settle, wait_within, within
from mmrl.runtime.net.loops import loop, wait_for
from mmrl.runtime.process_state import SHARED, Generators, ProcessState, process_state, random_state, set_random_state
from mmrl.runtime.ranges import PositiveShare, Range, check_ranges
from mmrl.runtime.workers import NEVER_AGAIN, WorkerProcess

Verb = Literal["open", "step", "close"]
Function = Callable[[Prompt, tuple[Turn, ...], int], Foreign]
"""Gives an observation or None; may be `async`."""


class LostWorldError(RuntimeError):
    """The process that held the world died."""


@dataclass
class WorldHost:
    """Call it with a verb, the number of a world, and what the verb takes."""

    environment: Environment
    worlds: dict[int, Foreign] = field(default_factory=dict[int, Foreign])

    def __call__(self, verb: Verb, number: int, *arguments: Prompt | Turn | int) -> Foreign:
        """The world's answer, or something to await; LostWorldError for a number that is not open."""
        if verb == "open":
            return self.environment.open(*arguments)  # type: ignore[arg-type] - a verb says what comes with it
        if number not in self.worlds:
            raise LostWorldError("its process died with it, and was started again")
        if verb == "step":
            return self.worlds[number].step(*arguments)
        return self.worlds.pop(number).close()

    def keep(self, number: int, world: object) -> None:
        """Note the world that was opened."""
        if not callable(getattr(world, "step", None)) or not callable(getattr(world, "close", None)):
            raise TypeError(f"the environment opened {type(world).__name__}, which has no step(turn) and close()")
        if any(session_of(held) is session_of(world) for held in self.worlds.values()):
            raise ValueError("the environment opened a world in which another episode is played: let it open one for each")
        self.worlds[number] = world


@dataclass
class RemoteHost(WorldHost):
    """The same in a process of its own, where awaitables are waited for, and worlds stay."""

    def __call__(self, verb: Verb, number: int, *arguments: Prompt | Turn | int) -> Foreign:
        answer = super().__call__(verb, number, *arguments)
        if inspect.isawaitable(answer):
            waiting: Awaitable[Foreign] = answer
            answer = wait_for(waiting)
        if verb == "open":
            return self.keep(number, answer)
        return answer


def session_of(world: object) -> object:
    """The thing that a world plays with, where it names one: of two worlds it must not be the same."""
    return getattr(world, "session", world)


@dataclass(frozen=True)
class Answering:
    """The environment of a function."""

    function: Function

    def open(self, prompt: Prompt, seed: int, /) -> World:
        return AnsweringWorld(self.function, prompt, seed)


@dataclass
class AnsweringWorld:
    """Asks the function with all turns so far."""

    function: Function
    prompt: Prompt
    seed: int
    turns: tuple[Turn, ...] = field(default=())

    def step(self, turn: Turn, /) -> Foreign:
        self.turns = (*self.turns, turn)
        return self.function(self.prompt, self.turns, self.seed)

    def close(self) -> None:
        """There is nothing to close."""


def environment_of(plug_in: Environment | Function) -> Environment:
    """An environment as it is, and a function as the environment that asks it."""
    return plug_in if isinstance(plug_in, Environment) else Answering(plug_in)


log = logging.getLogger("mmrl.worlds")
THREADS, PROCESSES, COROUTINES = 8, 2, 64
"""Worlds that answer at the same time, where the config says nothing."""
CLOSE_S = 3.0
"""Longest wait for worlds to be closed when a run ends: one that hangs is left to end with it."""
LONGEST_TEXT = 1 << 16
"""Characters of an observation that are kept where the limit is lower, and it is not shown."""


@dataclass(frozen=True)
class WorldCalling:
    """How worlds are called. `call = { where = "process", workers = 4, retries = 2 }` in `[environment]`."""

    where: Literal["thread", "inline", "process"] = "thread"
    """thread: in other threads, which are abandoned when they hang. inline: in the run's own thread, without a time limit, for
    worlds that answer at once. process: in separate processes, for worlds that need the processor or signals, or may hang; the
    environment must be picklable. `async def` always runs in a separate event loop."""
    workers: Annotated[int, Range(0, 256)] = 0
    """Worlds that answer at the same time; 0: 8 threads, 2 processes, or 64 of an `async def`."""
    retries: Annotated[int, Range(0, 1000)] = 0
    """Number of further attempts after an exception or a timeout: a new world is opened with the same seed, and asked the same
    turns."""

    __post_init__ = check_ranges


@dataclass
class Session:
    """One world, wherever it lives."""

    number: int
    prompt: Prompt
    seed: int
    caller: "Caller"
    turns: list[Turn] = field(default_factory=list[Turn])
    is_open: bool = False


@dataclass(eq=False)
class Caller:
    """A thread that has worlds open, and what it must find as it was when it has none any more."""

    thread: threading.Thread
    before: ProcessState
    random: Generators
    open: int = 0


class WorldRunner:
    """The worlds of an environment, as a policy uses them."""

    def __init__(
        self, environment: Environment, limits: Limits, calling: WorldCalling = WorldCalling(), wave: PositiveShare = 1.0
    ) -> None:
        self.environment, self.limits, self.calling, self.wave = environment, limits, calling, wave
        self.repeats = with_hooks(environment, EnvironmentHooks).repeats
        if calling.retries and not self.repeats:
            raise ValueError(
                "environment.call.retries opens a world again and asks it the same turns, and this environment says that it does "
                "not repeat: set retries = 0"
            )
        self.is_async = is_coroutine(environment.open)
        usual = COROUTINES if self.is_async else PROCESSES if calling.where == "process" else THREADS
        self.workers = calling.workers or usual
        self.host, self.processes = WorldHost(environment), list[WorkerProcess]()
        if calling.where == "process":
            self.processes = [WorkerProcess(RemoteHost(environment)) for _ in range(self.workers)]
        self._threads = Threads(self.workers, "world")
        self._sessions: dict[int, Session] = {}
        self._closing = list[Future[Foreign]]()
        self._next, self._seconds, self._retried = 0, list[float](), 0
        self._callers: dict[threading.Thread, Caller] = {}
        self._said = set[str]()
        self._lock = threading.Lock()
        atexit.register(self.end)

    def open(self, prompt: Prompt, seed: int) -> int:
        """The number of a new world, which is opened when it is first asked."""
        thread = threading.current_thread()
        with self._lock:
            caller = self._callers.get(thread) or self._enter(thread)
            caller.open += 1
            self._next += 1
            self._sessions[self._next] = Session(self._next, prompt, seed, caller)
            return self._next

    def _enter(self, thread: threading.Thread) -> Caller:
        """A thread opens its first world: what worlds do to random numbers and settings of the process must not reach it."""
        first = next(iter(self._callers.values()), None)
        before = process_state()
        caller = Caller(thread, before.beside(first.before) if first else before, random_state())
        self._callers[thread] = caller
        return caller

    def _leave(self, caller: Caller) -> None:
        """A thread has closed its last world."""
        del self._callers[caller.thread]
        # another one has other gradients and random numbers
        if caller.thread is threading.current_thread():
            self._put_back(caller)
            set_random_state(caller.random)

    def _put_back(self, caller: Caller) -> None:
        """Restore what worlds changed of the process: all for the thread that opened them, else what threads share."""
        changed = caller.before.restore(() if caller.thread is threading.current_thread() else SHARED)
        if changed and changed not in self._said:
            self._said.add(changed)
            log.warning("the environment changed settings of the whole process, which were restored: %s", changed)

    def step(self, number: int, turn: Turn) -> Future[Observation | None]:
        session = self._sessions[number]
        session.turns.append(turn)
        return self._submit(lambda: self._answer(session))

    def close(self, number: int) -> None:
        session = self._sessions.pop(number)
        closing = self._submit(lambda: self._close(session)) if session.is_open else None
        with self._lock:
            still = [one for one in self._closing if not one.done()]
            self._closing = still if closing is None else [*still, closing]
            session.caller.open -= 1
            if session.caller.open == 0:
                self._leave(session.caller)

    def drain_metrics(self) -> Mapping[str, float]:
        """time/environment/p50_s and p95_s of one answer, and environment/retried."""
        with self._lock:
            seconds, retried, self._seconds, self._retried = self._seconds, self._retried, [], 0
        if not seconds:
            return {}
        half, most = np.percentile(seconds, [50, 95])
        found = {"time/environment/p50_s": float(half), "time/environment/p95_s": float(most)}
        return found | ({"environment/retried": float(retried)} if self.calling.retries else {})

    def end(self) -> None:
        """Close what is open, as far as it can be soon, and end the processes, in whatever call they are."""
        for number in list(self._sessions):
            self.close(number)
        wait(self._closing, min(self.limits.timeout_s, CLOSE_S))
        for process in self.processes:
            process.give_up()

    def _submit(self, job: Foreign) -> Future[Foreign]:
        if self.calling.where == "inline":
            future = Future[Foreign]()
            settle(future, job)
            return future
        return self._threads.submit(job)

    def _answer(self, session: Session) -> Observation | None:
        """The answer to the latest turn, in a new world where the one before broke."""
        start, lost = time.perf_counter(), False
        attempt = 0
        while True:
            try:
                return self._ask(session)
            except LostWorldError:
                # another world took its process along
                if lost or not self.repeats:
                    raise
                lost = True
            except NEVER_AGAIN:
                raise
            except Exception:
                if attempt == self.calling.retries:
                    raise
                attempt += 1
                with self._lock:
                    self._retried += 1
            finally:
                # the next turn is written before the last world is closed
                self._put_back(session.caller)
                with self._lock:
                    self._seconds.append(time.perf_counter() - start)
            self._close(session)

    def _ask(self, session: Session) -> Observation | None:
        asked = session.turns[-1:] if session.is_open else session.turns
        if not session.is_open:
            world = self._call(session, "open", session.prompt, session.seed)
            if not self.processes:
                self.host.keep(session.number, world)
            session.is_open = True
        answer: Observation | None = None
        for turn in asked:
            answer = self._call(session, "step", turn)
        return self._within_room(answer)

    def _within_room(self, answer: Foreign) -> Foreign:
        """The answer; a text too long to be shown is cut, for memory and samples files."""
        most = max(self.limits.text, LONGEST_TEXT)
        too_long = isinstance(answer, Observation) and isinstance(answer.text, str) and len(answer.text) > most
        return replace(answer, text=cut(answer.text, most)) if too_long else answer

    def _close(self, session: Session) -> None:
        """Close a world; one that cannot be is only logged, since nothing depends on it."""
        if not session.is_open:
            return
        session.is_open = False
        try:
            self._call(session, "close")
        except LostWorldError:
            """It is closed."""
        except BaseException as error:
            if is_from_outside(error):
                raise
            log.warning("prompt %r: its world could not be closed: %s", session.prompt.id, describe(error))

    def _call(self, session: Session, verb: Verb, *arguments: Prompt | Turn | int) -> Foreign:
        """One call of a world, within the time limit."""
        limit = self.limits.timeout_s
        if self.processes:
            return self.processes[session.number % self.workers](verb, session.number, *arguments, timeout_s=limit)

        def ask() -> Foreign:
            return self.host(verb, session.number, *arguments)

        answer = ask() if self.calling.where == "inline" else within(limit, ask)
        if not inspect.isawaitable(answer):
            return answer
        return result_of(asyncio.run_coroutine_threadsafe(wait_within(answer, limit), loop("world-loop")))
