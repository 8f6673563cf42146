"""Named stretches of a step, for a trace of time and for listeners: nothing while there is neither."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar, runtime_checkable
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")
_OFF: AbstractContextManager[object] = nullcontext()
_recorders: list[object] = []
"""Not empty while a trace is recorded."""


@runtime_checkable
class SpanListener(Protocol):
    """Is called when a span begins and when it ends, by the thread that it runs in."""

    def begin(self, name: str) -> None: ...
    def end(self, name: str) -> None: ...


_listeners: WeakSet[SpanListener] = WeakSet()


def tell_of_spans(listener: SpanListener) -> None:
    """Tell it of all spans from now on, as long as somebody holds it."""
    _listeners.add(listener)


def span(name: str) -> AbstractContextManager[object]:
    """`with span("backward"): ...` is a bar of that name in a trace; costs a look at two lists where nothing records it."""
    if _listeners:
        return _told(name)
    return _recorded(name)


def _recorded(name: str) -> AbstractContextManager[object]:
    if not _recorders:
        return _OFF
    from torch.profiler import record_function

    return record_function(name)


@contextmanager
def _told(name: str) -> Generator[None]:
    listeners = tuple(_listeners)
    for listener in listeners:
        listener.begin(name)
    try:
        with _recorded(name):
            yield
    finally:
        for listener in listeners:
            listener.end(name)


def in_span(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """The same for every call of a function: `@in_span("generate")`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name):
                return function(*args, **kwargs)

        return call

    return decorate


@contextmanager
def recorded_spans() -> Generator[None]:
    """Enclose the work of a profiler, in whose trace spans are bars."""
    recorder = object()
    _recorders.append(recorder)
    try:
        yield
    finally:
        _recorders.remove(recorder)
