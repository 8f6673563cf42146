"""Which numbers a setting may be, said once beside its type: `lr: Positive = 1e-6`, `high: Annotated[float, Range(1, 10)] = 2.0`.

Checked where a config is read and where a part is made in Python; printed by `mmrl show`. NaN, infinities and integers of more
than 64 bits are refused for every setting.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from inspect import isclass
from types import UnionType
from typing import Annotated, TypeGuard, Union, cast, get_args, get_origin, get_type_hints

LARGEST_INT = 2**63 - 1
"""The limit of integers in tensors and in TOML."""


@dataclass(frozen=True)
class Range:
    """low <= x <= high, above < x < below; bounds that are None do not count, and every number is finite.

    Example: `Range(0, below=1)` in words is "0 or more and below 1".
    """

    low: float | int | None = None
    high: float | int | None = None
    above: float | int | None = None
    below: float | int | None = None
    why: str = ""
    """Why no more than `high`, as errors say it."""

    @property
    def words(self) -> str:
        """The range in words, as `mmrl show` and errors say it."""
        if self.low is not None and self.high is not None:
            return f"{self.low:.12g} to {self.high:.12g}"
        least = f"above {self.above:.12g}" if self.above is not None else "" if self.low is None else f"{self.low:.12g} or more"
        most = f"below {self.below:.12g}" if self.below is not None else "" if self.high is None else f"at most {self.high:.12g}"
        return " and ".join(part for part in (least, most) if part) or "any number"

    def fault(self, value: float | int) -> str:
        """How the value breaks the range; empty where it does not."""
        if not is_finite(value):
            return f"it must be a finite number{'' if self == Range() else f', {self.words}'}"
        reached = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        passed = (self.above is None or value > self.above) and (self.below is None or value < self.below)
        return "" if reached and passed else f"it must be {self.words}{self.why and f' ({self.why})'}"


class With:
    """A setting that changes nothing unless another one of its part has one of these values, or where none are named is set.

    Example: `outer_low: Annotated[Share, With("kept", "ring")] = 0.6`.
    """

    def __init__(self, other: str, *values: object) -> None:
        self.other, self.values = other, values

    def fault(self, part: object) -> str:
        """Why the setting changes nothing in this part; empty where it does."""
        found = getattr(part, self.other)
        wanted = f" = {' or '.join(map(repr, self.values))}" if self.values else ""
        if found in self.values if self.values else found:
            return ""
        return f"it counts with {self.other}{wanted} alone, and {self.other} is {found!r}: leave it out, or set {self.other}"


Number = Annotated[float, Range()]
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(above=0, high=1)]
BelowOne = Annotated[float, Range(0, below=1)]
Factor = Annotated[float, Range(1)]
Count = Annotated[int, Range(1, 2**20, why="more are not held in memory")]
CountOrNone = Annotated[int, Range(0, 2**20, why="more are not held in memory")]
"""0 has a meaning of its own, such as none, all or off."""
Large = Annotated[int, Range(1, 10**11)]
LargeOrNone = Annotated[int, Range(0, 10**11)]
"""Numbers that are only compared, not allocated: steps of a run, pixels, bytes."""
Seed = Annotated[int, Range(0, 2**32 - 1)]


def check_ranges(part: object) -> None:
    """Refuse numbers out of range in the fields of a dataclass, and settings that change nothing; to be its `__post_init__`.

    Raises ValueError naming class, field, value and range.
    """
    cls = type(part)
    for name, hint in hints_of(cls).items():
        value = getattr(part, name)
        # a tensor, which bears no mark, would be compared number by number
        idle = (one.fault(part) for one in get_args(hint) if isinstance(one, With) and value != getattr(cls, name, value))
        if fault := fault_of(hint, value) or next(filter(None, idle), ""):
            raise ValueError(f"{cls.__name__}.{name} is {value!r}: {fault}")


def fault_of(hint: object, value: object) -> str:
    """How a number breaks the range of its type, also inside unions, tuples, lists and tables; empty where none does."""
    return next(faults(hint, value), "")


def faults(hint: object, value: object) -> Iterator[str]:
    """Every fault of a value's numbers, by its type."""
    inner = get_args(hint)
    ranges = list(own_ranges(hint)) or ([Range()] if hint is int or hint is float else [])
    if ranges and is_number(value):
        yield from filter(None, (one.fault(value) for one in ranges))
    elif get_origin(hint) is Annotated:
        yield from faults(inner[0], value)
    elif get_origin(hint) in (Union, UnionType):
        yield from (fault for one in inner for fault in faults(one, value))
    elif isinstance(value, Mapping) and len(inner) == 2:
        items = list(cast("Mapping[object, object]", value).values())
        yield from (fault for item in items for fault in faults(inner[1], item))
    elif isinstance(value, list | tuple) and inner:
        entries = list(cast("Sequence[object]", value))
        each = inner if get_origin(hint) is tuple and inner[-1] is not Ellipsis else inner[:1] * len(entries)
        yield from (fault for one, item in zip(each, entries, strict=False) for fault in faults(one, item))


def ranges_of(part: Callable[..., object]) -> dict[str, str]:
    """Field of a dataclass, or argument of a function -> its range in words, of all that have one."""
    return {name: words for name, hint in hints_of(part).items() if (words := range_words(hint))}


def range_words(hint: object) -> str:
    """The ranges inside a type in words; empty where it has none."""
    return " or ".join(dict.fromkeys(one.words for one in ranges_in(hint)))


def ranges_in(hint: object) -> Iterator[Range]:
    """The ranges inside a type, from the outside in."""
    yield from own_ranges(hint)
    for one in get_args(hint):
        yield from ranges_in(one)


def own_ranges(hint: object) -> Iterator[Range]:
    if get_origin(hint) is Annotated:
        yield from (mark for mark in get_args(hint)[1:] if isinstance(mark, Range))


@cache
def hints_of(part: Callable[..., object]) -> dict[str, object]:
    """The types of a dataclass's fields that can be given, or of a function's arguments, ranges included."""
    hints = get_type_hints(part, include_extras=True)
    if isclass(part) and is_dataclass(part):
        return {f.name: hints[f.name] for f in fields(part) if f.init}
    return {name: hint for name, hint in hints.items() if name != "return"}


def is_number(value: object) -> TypeGuard[float | int]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: float | int) -> bool:
    return abs(value) <= LARGEST_INT if isinstance(value, int) else math.isfinite(value)
