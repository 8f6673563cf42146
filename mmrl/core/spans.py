"""Named stretches of a step in a trace of time: nothing while nobody records one."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

from torch.profiler import record_function

P = ParamSpec("P")
T = TypeVar("T")
_OFF: AbstractContextManager[object] = nullcontext()
_recorders: list[object] = []
"""Not empty while a trace is recorded."""


def span(name: str) -> AbstractContextManager[object]:
    """`with span("backward"): ...` is a bar of that name in a trace; costs a look at a list where none is recorded."""
    return record_function(name) if _recorders else _OFF


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
