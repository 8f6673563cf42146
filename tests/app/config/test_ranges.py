"""Every number that a config may hold has a range, which is kept in configs and in Python alike."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.config.cluster import ClusterConfig
from mmrl.app.config.run import RunConfig, as_table, load
from mmrl.app.config.slots import SLOTS, kinds
from mmrl.app.inspect.settings import ranges_of_config
from mmrl.app.modality.registry import POLICIES
from mmrl.app.plugins import resolve as plugins
from mmrl.app.toml.tables import dotted_key, leaves
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
    hints_of,
    ranges_of,
)
from mmrl.serving.judges.judge import Endpoint
from mmrl.serving.reward_client import RemoteReward
from mmrl.serving.reward_server import ServerLimits
from tests.support.refused import refused

COMPUTED = {"Algorithm": {"objective", "ema_decay"}}
"""Numbers inside slots: a coefficient, and what a part answers."""


def is_numeric(hint: Any) -> bool:
    return hint in (int, float) or any(is_numeric(one) for one in get_args(hint) if not isinstance(one, str))


def numbers(part: Callable[..., object]) -> set[str]:
    """The fields or arguments that take numbers, those inside other dataclasses aside."""
    return {name for name, hint in get_type_hints(part).items() if name in hints_of(part) and is_numeric(hint)}


def settings() -> Iterator[Any]:
    """Every dataclass whose fields a config sets, and the functions of shipped data sets."""
    seen: list[Any] = []
    todo: list[Any] = [RunConfig, RemoteReward, ServerLimits, ClusterConfig, Endpoint, *POLICIES.values()]
    todo += [part for slot in SLOTS for part in kinds(slot).values()]
    todo += [plugins.load(listed.name, folder) for folder in ("rewards", "datasets") for listed in plugins.listing(folder)]
    while todo:
        part = todo.pop()
        if part in seen:
            continue
        seen.append(part)
        if inspect.isclass(part) and is_dataclass(part):
            todo += [found for hint in hints_of(part).values() for found in dataclasses_in(hint)]
        yield part


def dataclasses_in(hint: Any) -> Iterator[Any]:
    if inspect.isclass(hint) and is_dataclass(hint):
        yield hint
    for one in get_args(hint):
        yield from dataclasses_in(one) if not isinstance(one, str) else ()


def test_every_number_of_every_setting_has_a_range_and_every_whole_one_a_highest_value():
    looked, missing = 0, []
    for part in settings():
        names = numbers(part) - COMPUTED.get(part.__name__, set())
        missing += [f"{part.__name__}.{name}" for name in names - ranges_of(part).keys()]
        looked += len(names)
    assert not missing, f"settings without a range: give them one of mmrl/runtime/ranges.py: {missing}"
    assert looked > 200
    hints = [(f"{part.__name__}.{name}", hint) for part in settings() for name, hint in hints_of(part).items()]
    found = [(name, one) for name, hint in hints for one in whole_numbers(hint)]
    missing = [name for name, one in found if one is None or (one.high is None and one.below is None)]
    assert not missing, f"whole numbers without an upper limit: give Range a `high`, and a `why`: {missing}"
    assert len(found) > 150


def whole_numbers(hint: Any) -> Iterator[Range | None]:
    """The range of every whole number in a type; None for one without."""
    if hint is int:
        yield None
    elif get_origin(hint) is Annotated and get_args(hint)[0] is int:
        yield next((mark for mark in get_args(hint)[1:] if isinstance(mark, Range)), None)
    else:
        yield from (found for one in get_args(hint) if not isinstance(one, str) for found in whole_numbers(one))


def test_the_rollouts_of_a_step_fit_the_memory():
    refused(r"has 4194304 rollouts, and at most 1048576 are held in memory: lower one of them", Algorithm().check_step, 2**19)
    refused("starts 60000 processes of a kind on each machine", ClusterConfig, trainers=60_000)


@pytest.mark.parametrize("name", sorted(kinds("schedule")))
def test_no_schedule_plans_a_billion_steps(name: str):
    cls = kinds("schedule")[name]
    refused(rf"{name}\.num_steps is 1000000000: it must be 1 to 4096", cls, num_steps=10**9)


def test_every_class_with_ranges_checks_them_when_it_is_made():
    for part in settings():
        if not (inspect.isclass(part) and is_dataclass(part) and ranges_of(part)):
            continue
        name = next(iter(ranges_of(part)))
        made = object.__new__(part)
        for f in fields(part):
            wrong = (float("nan"),) if isinstance(f.default, tuple) else float("nan")
            wrong = {"a": wrong} if get_origin(hints_of(part).get(f.name)) is Mapping else wrong
            object.__setattr__(made, f.name, wrong if f.name == name else f.default)
        refused(rf"{part.__name__}\.{name} is .*finite", inspect.getattr_static(part, "__post_init__"), made)


def test_show_knows_the_range_of_every_number():
    config = load("tiny/image").config
    ranges = ranges_of_config(config)
    found = {dotted_key(path): value for path, value in leaves(as_table(config))}
    numeric = {key for key, value in found.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    assert numeric <= ranges.keys()
    assert ranges["reward.1.slope"] == "0 to 1048576"
    assert ranges["algorithm.objective.0.low"] == "0 to 1"


@pytest.mark.parametrize(("name", "value"), [("tiny/image", "[[]]"), ("tiny/image", "{}"), ("tiny/flow", "[]")])
def test_a_value_is_taken_or_refused(name: str, value: str):
    """Whatever a key is set to, a config resolves or is refused in a sentence."""
    strange: dict[str, str] = {}
    for key, _, _ in load(name).rows():
        try:
            load(name, [f"{key}={value}"])
        except (ValueError, OSError, ModuleNotFoundError):
            continue
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            strange[key] = repr(error)
    assert strange == {}


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
        ({"count": 10**10}, r"Part\.count is 10000000000: it must be 1 to 1048576 \(more are not held"),
        ({"betas": (0.9, 1.0)}, r"Part\.betas is \(0\.9, 1\.0\): it must be 0 or more and below 1"),
        ({"steps": (1, 2, -1)}, "it must be 0 or more"),
        ({"weights": {"a": 1.0, "b": NAN}}, "it must be a finite number, 0 or more"),
        ({"plain": INFINITY}, r"Part\.plain is inf: it must be a finite number$"),
    ],
)
def test_a_part_made_in_python_is_checked(values: dict[str, Any], message: str):
    Part(weights=cast(Any, np.ones(2)))  # whose comparison is no truth
    refused(message, Part, **values)


def test_ranges_of_a_part_and_of_a_function_and_what_is_no_number():
    def load(size: Count = 3, seed: Seed = 0, name: str = "") -> None: ...

    assert ranges_of(load) == {"size": "1 to 1048576", "seed": "0 to 4294967295"}
    assert ranges_of(Part)["betas"] == "0 or more and below 1"
    assert set(ranges_of(Part)) == {"high", "count", "betas", "steps", "weights"}
    assert fault_of(Number, True) == fault_of(Count, False) == fault_of(Count, "0") == fault_of(Count | None, None) == ""
