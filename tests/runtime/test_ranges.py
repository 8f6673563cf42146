from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from mmrl.runtime.ranges import (
    BelowOne,
    Count,
    NonNegative,
    Number,
    PositiveShare,
    Range,
    Seed,
    check_ranges,
    fault_of,
    ranges_of,
)

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("one", "words", "inside", "outside"),
    [
        (Range(), "any number", [-1e300, 0, 3], []),
        (Range(0), "0 or more", [0, 1e300], [-1e-300]),
        (Range(above=0), "above 0", [1e-300], [0, -0.0]),
        (Range(0, 1), "0 to 1", [0, 1], [1.0000001]),
        (Range(above=0, high=1), "above 0 and at most 1", [1], [0]),
        (Range(0, below=1), "0 or more and below 1", [0, 0.999], [1]),
        (Range(0, 2**32 - 1), "0 to 4294967295", [2**32 - 1], [2**32]),
    ],
)
def test_a_range_says_what_fits(one: Range, words: str, inside: list[float | int], outside: list[float | int]):
    assert one.words == words
    for value in inside:
        assert one.fault(value) == ""
    for value in outside:
        assert one.fault(value) == f"it must be {words}"
    for value in (NAN, INFINITY, -INFINITY, 10**400, -(2**63) - 1):
        assert one.fault(value).startswith("it must be a finite number")


@dataclass(frozen=True)
class Part:
    high: PositiveShare = 0.2
    count: Count | None = None
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.99)
    steps: tuple[Annotated[int, Range(0)], ...] = ()
    weights: Mapping[str, NonNegative] | None = None
    plain: float | None = None
    name: str = ""

    __post_init__ = check_ranges


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"high": 0.0}, r"Part\.high is 0\.0: it must be above 0 and at most 1"),
        ({"count": 0}, r"Part\.count is 0: it must be 1 to 1048576"),
        ({"betas": (0.9, 1.0)}, r"Part\.betas is \(0\.9, 1\.0\): it must be 0 or more and below 1"),
        ({"steps": (1, 2, -1)}, "it must be 0 or more"),
        ({"weights": {"a": 1.0, "b": NAN}}, "it must be a finite number, 0 or more"),
        ({"plain": INFINITY}, r"Part\.plain is inf: it must be a finite number$"),
    ],
)
def test_a_part_made_in_python_is_checked(values: dict[str, Any], message: str):
    Part()
    with pytest.raises(ValueError, match=message):
        Part(**values)


def test_ranges_of_a_part_and_of_a_function():
    def load(size: Count = 3, seed: Seed = 0, name: str = "") -> None: ...

    assert ranges_of(load) == {"size": "1 to 1048576", "seed": "0 to 4294967295"}
    assert ranges_of(Part)["betas"] == "0 or more and below 1"
    assert set(ranges_of(Part)) == {"high", "count", "betas", "steps", "weights"}


def test_a_truth_value_or_a_text_is_no_number():
    assert fault_of(Number, True) == fault_of(Count, False) == fault_of(Count, "0") == fault_of(Count | None, None) == ""


def test_an_absurd_number_is_told_why():
    with pytest.raises(ValueError, match=r"Part\.count is 10000000000: it must be 1 to 1048576 \(more are not held"):
        Part(count=10**10)
