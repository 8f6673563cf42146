"""Values inside a user's object, whose own code runs when they are read. Standard library only."""

from collections.abc import Mapping, Sequence, Set
from itertools import islice
from typing import Any

from mmrl.runtime.blame import describe, is_from_outside

Foreign = Any
"""An object of whatever class."""


class NoListError(TypeError):
    """The object is no sequence of values."""


def values_of(answer: Foreign, count: int) -> list[Foreign]:
    """The values in order, at most one more than `count`, because there may be no end.

    Raises:
        NoListError: it has no order, or is a text, whose letters are not values.
    """
    if isinstance(answer, str | bytes | bytearray | Mapping | Set):
        raise NoListError
    try:
        found = iter(answer)
    except TypeError:
        raise NoListError from None
    return list(islice(found, count + 1))


def count_of(values: Sequence[object], wanted: int) -> str:
    return str(len(values)) if len(values) <= wanted else f"more than {wanted}"


def number(value: Foreign) -> float:
    """Raises TypeError for what is no number, whatever its own code raises."""
    try:
        return float(value)
    except BaseException as error:
        if is_from_outside(error):
            raise
        raise TypeError(describe(error)) from error
