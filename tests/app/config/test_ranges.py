"""Every number that a config may hold has a range, which is kept in configs and in Python alike."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest

from mmrl.app.config.plug_ins import read_plug_ins
from mmrl.app.config.run import RunConfig, as_table, load
from mmrl.app.config.slots import SLOTS, kinds
from mmrl.app.inspect.options import ranges_of_config
from mmrl.app.modality.registry import POLICIES
from mmrl.app.plugins import resolve as plugins
from mmrl.app.toml.tables import dotted_key, leaves
from mmrl.core.ranges import hints_of, ranges_of
from mmrl.serving.reward_client import RemoteReward

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
    todo: list[Any] = [RunConfig, RemoteReward, *POLICIES.values(), *(part for slot in SLOTS for part in kinds(slot).values())]
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


def test_every_number_of_every_setting_has_a_range():
    looked, missing = 0, []
    for part in settings():
        names = numbers(part) - COMPUTED.get(part.__name__, set())
        missing += [f"{part.__name__}.{name}" for name in names - ranges_of(part).keys()]
        looked += len(names)
    assert not missing, f"settings without a range: give them one of mmrl/core/ranges.py: {missing}"
    assert looked > 200


def test_every_class_with_ranges_checks_them_when_it_is_made():
    for part in settings():
        if not (inspect.isclass(part) and is_dataclass(part) and ranges_of(part)):
            continue
        name = next(iter(ranges_of(part)))
        made = object.__new__(part)
        for f in fields(part):
            wrong = (float("nan"),) if isinstance(f.default, tuple) else float("nan")
            object.__setattr__(made, f.name, wrong if f.name == name else f.default)
        with pytest.raises(ValueError, match=rf"{part.__name__}\.{name} is .*finite"):
            inspect.getattr_static(part, "__post_init__")(made)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("optimizer.lr=nan", r"command line: optimizer\.lr is nan: it must be a finite number, above 0 and at most 1000"),
        ("optimizer.lr=inf", r"optimizer\.lr is inf"),
        ("optimizer.lr=1e30", r"optimizer\.lr is 1e\+30: it must be above 0 and at most 1000"),
        ("optimizer.clip_norm=-1", r"optimizer\.clip_norm is -1: it must be 0 or more"),
        ("optimizer.betas=[0.9,1.0]", r"optimizer\.betas is .*: it must be 0 or more and below 1"),
        ("algorithm.group_size=0", r"algorithm\.group_size is 0: it must be 1 or more"),
        ("algorithm.objective.0.coef=inf", r"algorithm\.objective\.0\.coef is inf: it must be a finite number"),
        ("algorithm.objective.0.low=-0.1", r"algorithm\.objective\.0\.low is -0\.1: it must be 0 to 1"),
        ("algorithm.advantage.eps=nan", r"algorithm\.advantage\.eps is nan"),
        ("seed=-1", "seed is -1: it must be 0 to 4294967295"),
        ("steps=99999999999999999999", "steps is 99999999999999999999: it must be a finite number"),
        ("policy.sampling.temperature=-0.5", r"policy\.sampling\.temperature is -0\.5: it must be 0 or more"),
        ("reward.0.timeout_s=0", r"reward\.0\.timeout_s is 0: it must be above 0"),
        ("reward.1.high=-5", r"reward\.1\.high is -5: it must be 0 or more"),
        ("data.size=-1", r"data\.size is -1: it must be 1 or more"),
    ],
)
def test_a_config_names_place_value_and_range(word: str, message: str):
    with pytest.raises(ValueError, match=message):
        read_plug_ins(load("tiny/image", [word]))


def test_show_knows_the_range_of_every_number():
    config = load("tiny/image").config
    ranges = ranges_of_config(config)
    found = {dotted_key(path): value for path, value in leaves(as_table(config))}
    numeric = {key for key, value in found.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    assert numeric <= ranges.keys()
    assert ranges["reward.1.slope"] == "0 or more"
    assert ranges["algorithm.objective.0.low"] == "0 to 1"
