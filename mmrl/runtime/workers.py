"""A function in a process of its own, which can be killed when it does not answer. Standard library only."""

import importlib.util
import multiprocessing
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, cast

from mmrl.runtime.blame import PLUGIN, describe, note_place


class WorkerError(RuntimeError):
    """The function raised something that cannot travel between processes, or its process died."""


class WorkerProcess:
    """Calls `function` in another process, in that process's main thread; started at the first call, restarted after a kill.

    A function with a method `prepare()` has it called when its process starts, for imports that take long.

    Raises:
        ValueError: the function cannot be pickled.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        try:
            self._payload = pickle.dumps(function)
        except Exception as error:  # noqa: BLE001 - pickling runs the function's own code
            raise ValueError(
                f"{function!r} cannot be sent to another process ({error}): define it at the top of a file, "
                "not inside a function and not as a lambda"
            ) from None
        self._files = plugin_files(function)
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def __call__(self, *arguments: object, timeout_s: float | None = None) -> Any:
        """The function's answer.

        Raises:
            TimeoutError: none within `timeout_s`; the process is killed. The time to start a process does not count.
            WorkerError: the process died, or raised something that cannot be pickled; else whatever the function raised.
        """
        with self._lock:
            if self._process is None or self._connection is None or not self._process.is_alive():
                self._connection = self._start()
            connection = self._connection
            try:
                connection.send_bytes(pickle.dumps(arguments))
                is_late = not connection.poll(timeout_s)
                reply = b"" if is_late else connection.recv_bytes()
            except (EOFError, OSError):
                # the latter where it died amid its answer
                code = self._kill()
                raise WorkerError(f"its process died with exit code {code}") from None
            if is_late:
                self._kill()
                raise TimeoutError(f"no answer within {timeout_s} s; its process was killed")
        answered, value = pickle.loads(reply)  # noqa: S301 - our own child's bytes
        if not answered:
            raise value
        return value

    def close(self) -> None:
        with self._lock:
            if self._process is not None:
                self._kill()

    def give_up(self) -> None:
        """Kill the process without waiting for a call that is under way, which raises WorkerError; the next starts it again."""
        if (process := self._process) is not None and process.pid is not None:
            process.kill()

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, self._payload, self._files), daemon=True)
        self._process.start()
        theirs.close()
        try:
            ready = self._connection.recv_bytes()
        except (EOFError, OSError):
            raise WorkerError(f"its process ended with exit code {self._kill()} while loading it") from None
        if ready:
            self._kill()
            raise WorkerError(f"its process cannot load it: {ready.decode()}")
        return self._connection

    def _kill(self) -> int | None:
        assert self._process is not None and self._connection is not None
        self._process.kill()
        self._process.join()
        code = self._process.exitcode
        self._connection.close()
        self._process = None
        return code


def serve(connection: Connection, payload: bytes, files: Mapping[str, str]) -> None:
    """The other process's loop: load, then answer until there are no more requests."""
    for number in (signal.SIGINT, signal.SIGHUP):
        # the terminal sends them to the whole run, which decides what becomes of its processes
        signal.signal(number, signal.SIG_IGN)
    try:
        for name, file in files.items():
            load_file(name, file)
        function = pickle.loads(payload)  # noqa: S301 - our own parent's bytes
        getattr(function, "prepare", bool)()
    except BaseException as error:  # noqa: BLE001 - loading runs the function's own code
        connection.send_bytes(describe(error).encode(errors="backslashreplace"))
        return
    connection.send_bytes(b"")
    while True:
        try:
            arguments = pickle.loads(connection.recv_bytes())  # noqa: S301 - our own parent's bytes
        except EOFError:
            return
        try:
            reply: tuple[bool, object] = True, function(*arguments)
            packed = pickle.dumps(reply)
        except BaseException as error:  # noqa: BLE001 - a user's function may raise anything; it is raised again in the parent
            packed = pickle.dumps((False, portable(error)))
        connection.send_bytes(packed)


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
