"""A function in a process of its own, which can be killed when it does not answer. Standard library only.

The process is a program of its own: it inherits no locks, as a fork would.
"""

import atexit
import ctypes
import importlib.util
import multiprocessing
import os
import pickle
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import fields, is_dataclass
from functools import cache, partial
from inspect import ismethod
from multiprocessing import resource_tracker, spawn
from multiprocessing.connection import Connection
from typing import Any, cast
from weakref import WeakSet

from mmrl.runtime.blame import PLUGIN, UnavailableError, describe, note_place
from mmrl.runtime.net.clocks import LEAST_S, CallClock, away, timed

PROGRAM = "import sys; sys.path[:] = sys.argv[4:]; from mmrl.runtime.workers import begin; begin(*map(int, sys.argv[1:4]))"
GUARD = (
    "the main file is read again in every process that works for it, and there it starts one itself: put what it does under "
    '`if __name__ == "__main__":`'
)
LAUNCHER = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE|NAME)|MASTER_(ADDR|PORT)|(TORCHELASTIC|ACCELERATE|FSDP|OMPI|PMIX?|MV2|SLURM)_.*"
)
"""Environment variables by which a process belongs to the job of a launcher; servers and samplers must do without."""
unguarded = threading.Event()
"""Such a file asked for a process in this one."""
Start = Callable[[], "subprocess.Popen[bytes]"]
_SET_DEATH_SIGNAL = 1
living: WeakSet["subprocess.Popen[bytes]"] = WeakSet()
"""The processes that this one has started."""


class WorkerError(RuntimeError):
    """The function raised something that cannot travel between processes, or its process died."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        """The exit code of a process that died."""


class LoadError(RuntimeError):
    """The function cannot be loaded in another process, however often it is tried."""


NEVER_AGAIN = (UnavailableError, ImportError, LoadError, NotImplementedError)
"""Exceptions that a retry cannot fix."""


class SilentError(TimeoutError):
    """There was no answer in time."""

    def __init__(self, text: str, stopped_by: int | None) -> None:
        super().__init__(text)
        self.stopped_by = stopped_by
        """The signal that had stopped the process, if one had."""


class SilenceTimer:
    """A block after `timeout_s` seconds of a clock a process is killed, never once the block is left; None: without an end."""

    def __init__(self, process: "subprocess.Popen[bytes]", timeout_s: float | None, clock: CallClock) -> None:
        self.process, self.timeout_s, self.clock = process, timeout_s, clock
        self.error: SilentError | None = None
        self._is_over, self._settling = threading.Event(), threading.Lock()

    def __enter__(self) -> None:
        if self.timeout_s is not None:
            threading.Thread(target=self._watch, args=(self.timeout_s,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        with self._settling:
            self._is_over.set()

    def _watch(self, timeout_s: float) -> None:
        while (left_s := timeout_s - self.clock.seconds()) > 0:
            if self._is_over.wait(max(left_s, LEAST_S)):
                return
            if stopped_by(self.process.pid) is not None:
                # the clock of one that waited for a server as it was stopped would stand still for ever
                break
        with self._settling:
            if not self._is_over.is_set():
                stop = stopped_by(self.process.pid)
                why = "" if stop is None else f", which {signal.Signals(stop).name} had stopped,"
                self.error = SilentError(f"no answer within {timeout_s:g} s; its process{why} was killed", stop)
                self.process.kill()


class WorkerProcess:
    """Calls `function` in another process, in that process's main thread; started at the first call, restarted after a kill.

    A function with a method `prepare()` has it called when its process starts, for imports that take long.

    Args:
        reads_main: the main file is read again, for functions and arguments that are defined there.
        variables: what the process finds in its environment, beside what is there.

    Raises:
        ValueError: the function cannot be pickled.
    """

    def __init__(self, function: Callable[..., object], reads_main: bool = True, **variables: str) -> None:
        try:
            self._payload = pickle.dumps(function)
        except Exception as error:  # noqa: BLE001 - pickling runs the function's own code
            raise ValueError(
                f"{function!r} cannot be sent to another process ({error}): define it at the top of a file, "
                "not inside a function and not as a lambda"
            ) from None
        self._files, self._reads_main, self._variables = plugin_files(function), reads_main, variables
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The number of the process, if there is one."""
        return None if self._process is None else self._process.pid

    def __call__(self, *arguments: object, timeout_s: float | None = None) -> Any:
        """The function's answer.

        Raises:
            SilentError: none within `timeout_s`; the process is killed. The time to start a process does not count, nor that in
                which the function waits for a server that is away.
            LoadError: the process cannot load the function.
            WorkerError: the process died, or raised something that cannot be pickled; else whatever the function raised.
        """
        packed = pack(arguments)
        with self._lock:
            if self._process is None or self._connection is None or self._process.poll() is not None:
                self._start()
            parts = self._converse(packed, timeout_s)
        answered, value = cast("tuple[bool, object]", unpack(parts))
        if not answered:
            raise cast(Exception, value)
        return value

    def close(self) -> None:
        with self._lock:
            if self._process is not None:
                self._end()

    def give_up(self) -> None:
        """Kill the process, from any thread: a call that is under way raises WorkerError, and the next starts it again.

        The connection is for the thread that reads it to close.
        """
        if (process := self._process) is not None:
            process.kill()
            process.wait()

    def _start(self) -> None:
        if self._process is not None:
            self._end()
        try:
            facts = spawn.get_preparation_data("worker")
        except RuntimeError:
            # this process is itself reading the main file again
            unguarded.set()
            raise LoadError(GUARD) from None
        unwanted = ("authkey",) if self._reads_main else ("authkey", "init_main")
        facts = {name: fact for name, fact in facts.items() if not name.startswith(unwanted)}
        self._connection, theirs = multiprocessing.Pipe()
        tracker = resource_tracker.getfd()
        assert tracker is not None
        shared = (theirs.fileno(), tracker)
        path = [folder or os.getcwd() for folder in sys.path]
        command = [sys.executable, "-c", PROGRAM, *map(str, (*shared, os.getpid())), *path]
        variables = {**os.environ, **self._variables}
        start = partial(subprocess.Popen[bytes], command, stdin=subprocess.DEVNULL, pass_fds=shared, env=variables)
        self._process = started(start)
        living.add(self._process)
        theirs.close()
        try:
            send(self._connection, pack((facts, self._payload, self._files)))
            ready = self._connection.recv_bytes()
        except (EOFError, OSError):
            code = self._end()
            raise WorkerError(f"its process ended with exit code {code} while loading it", code) from None
        if ready:
            self._end()
            raise LoadError(f"its process cannot load it: {ready.decode()}")

    def _converse(self, packed: Sequence[bytes | memoryview], timeout_s: float | None) -> list[bytes]:
        process, connection = self._process, self._connection
        assert process is not None and connection is not None
        with timed() as clock:
            alarm = SilenceTimer(process, timeout_s, clock)
            try:
                with alarm:
                    send(connection, packed)
                    answer = receive(connection)
            except (EOFError, OSError):
                # the latter where it died amid its answer
                code = self._end()
                raise alarm.error or WorkerError(f"its process died with exit code {code}", code) from None
            except BaseException:
                # what comes late would be taken for the answer to the next call
                self._end()
                raise
        if alarm.error is not None:
            # it answered as the time was over; the next call must not meet what is left of it
            self._end()
        return answer

    def _end(self) -> int:
        """The exit code of the process, which is killed if it lives."""
        assert self._process is not None and self._connection is not None
        self._process.kill()
        code = self._process.wait()
        self._connection.close()
        self._process = None
        return code


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
    """The queue of the thread that starts processes; a process that forked off has the queue, but not the thread."""
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


@atexit.register
def end_all() -> None:
    """Processes do not outlive the one that they work for, whatever they do."""
    for process in list(living):
        process.kill()


def stopped_by(pid: int) -> int | None:
    """The signal that has stopped a process of this one."""
    # macOS has no waitid before Python 3.13; an end that comes meanwhile is Popen's to see
    with suppress(AttributeError, ChildProcessError):
        found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        return None if found is None else found.si_status
    return None


def pack(thing: object) -> list[bytes | memoryview]:
    """A pickle, and beside it large arrays as they are."""
    beside: list[pickle.PickleBuffer] = []
    return [pickle.dumps(thing, protocol=5, buffer_callback=beside.append), *(buffer.raw() for buffer in beside)]


def send(connection: Connection, packed: Sequence[bytes | memoryview]) -> None:
    connection.send(len(packed))
    for part in packed:
        connection.send_bytes(part)


def receive(connection: Connection) -> list[bytes]:
    """Read what was sent; the clocks of this call stand still while the other side says that it waits for a server."""
    with ExitStack() as waits:
        while isinstance(said := connection.recv(), bool):
            waits.enter_context(away()) if said else waits.close()
    return [connection.recv_bytes() for _ in range(said)]


def unpack(parts: Sequence[bytes]) -> object:
    """The thing that was packed; its arrays can be written to."""
    return pickle.loads(parts[0], buffers=map(bytearray, parts[1:]))  # noqa: S301 - our own parent's or child's bytes


def begin(handle: int, tracker: int, parent: int) -> None:
    """The other process: load the function that it is sent, and serve."""
    if not end_with(parent):
        return
    for number in (signal.SIGINT, signal.SIGHUP):
        # the terminal sends them to the whole run, which decides what becomes of its processes
        signal.signal(number, signal.SIG_IGN)
    # a tracker of its own would free memory that the processes share as soon as this one ends
    vars(vars(resource_tracker)["_resource_tracker"])["_fd"] = tracker
    with suppress(EOFError, OSError), Connection(handle) as connection:
        facts, payload, files = cast("tuple[dict[str, object], bytes, dict[str, str]]", unpack(receive(connection)))
        serve(connection, facts, payload, files)


def serve(connection: Connection, facts: dict[str, object], payload: bytes, files: Mapping[str, str]) -> None:
    """The other process's loop: load, then answer until the one that asks is gone."""
    state = vars(multiprocessing.current_process())
    try:
        # as multiprocessing says that the main file is read again
        state["_inheriting"] = True
        spawn.prepare(facts)
        del state["_inheriting"]
        for name, file in files.items():
            load_file(name, file)
        function = pickle.loads(payload)  # noqa: S301 - our own parent's bytes
        getattr(function, "prepare", bool)()
        if unguarded.is_set():
            raise LoadError(GUARD)
    except BaseException as error:  # noqa: BLE001 - loading runs the function's own code
        connection.send_bytes((GUARD if unguarded.is_set() else describe(error)).encode(errors="backslashreplace"))
        return
    connection.send_bytes(b"")
    while True:
        arguments = cast("tuple[object, ...]", unpack(receive(connection)))
        try:
            with timed(connection.send):
                packed = pack((True, function(*arguments)))
        except BaseException as error:  # noqa: BLE001 - a user's function may raise anything; it is raised again in the parent
            packed = pack((False, portable(error)))
        send(connection, packed)


def portable(error: BaseException) -> Exception:
    """The exception with its place noted, if it is one and survives pickling; else its text."""
    note_place(error)
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - unpickling runs the exception's own constructor
        return WorkerError(describe(error))
    return error if isinstance(error, Exception) else WorkerError(describe(error))


def plugin_files(function: Callable[..., object]) -> dict[str, str]:
    """Modules of the function, and of what it holds, that were loaded by path: another process cannot import them by name."""
    files: dict[str, str] = {}
    held: list[object] = [function]
    while held:
        thing = held.pop()
        if isinstance(thing, partial):
            whole = cast("partial[object]", thing)
            held += [whole.func, *whole.args, *whole.keywords.values()]
            continue
        held += [thing.__self__] if ismethod(thing) else []
        name = getattr(thing, "__module__", None) or ""
        if name.startswith(PLUGIN):
            files[name] = str(sys.modules[name].__file__)
        if is_dataclass(thing):
            held += [getattr(thing, f.name, None) for f in fields(thing)]
    return files


def load_file(name: str, file: str) -> None:
    """Run a file as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
