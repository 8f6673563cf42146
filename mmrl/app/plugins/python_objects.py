"""Plug-ins that are objects of the program that calls mmrl, not files: `use = "python:short"` in a run's config.toml."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

PREFIX = "python:"
STAGE = "stage:"
"""Begins the name of the rows that a stage of a chain has written: `data.use = "stage:pairs"`."""
_OBJECTS: ContextVar[Mapping[str, Callable[..., Any]]] = ContextVar("_OBJECTS", default=MappingProxyType({}))
"""Name -> object, as long as the call lasts that was given them."""


@contextmanager
def offer(objects: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Let configs name these objects while inside, beside those of calls around this one."""
    token = _OBJECTS.set({**_OBJECTS.get(), **objects})
    try:
        yield
    finally:
        _OBJECTS.reset(token)


def find_object(use: str) -> Callable[..., Any]:
    """The object that a config calls `python:<name>`; ValueError if it belonged to an ended program, or to another call."""
    name, known = use.removeprefix(PREFIX), _OBJECTS.get()
    if name not in known and use.startswith(STAGE):
        raise ValueError(f"{use!r} is what a stage of a chain writes for later ones, and no stage before has this name")
    if name not in known:
        raise ValueError(
            f"{use!r} was an object of a Python program, which a config cannot bring back: give it to mmrl.fit or mmrl.evaluate "
            "again (output=the run's folder, resume=True), or write its file in the config (use = './mine.py:name')"
        )
    return known[name]


def is_of_python(value: object) -> bool:
    """Does a table name such an object, at any depth?"""
    if isinstance(value, Mapping):
        return any(map(is_of_python, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_of_python, value))
    return isinstance(value, str) and value.startswith(PREFIX)
