"""Attributes that have another value for the time of a block."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def holding(owners: Iterable[object], name: str, value: object) -> Iterator[None]:
    """A block in which an attribute of each of these objects has this value."""
    kept = [(owner, getattr(owner, name)) for owner in owners]
    for owner, _ in kept:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, own in kept:
            setattr(owner, name, own)
