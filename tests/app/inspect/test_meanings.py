"""Every key of a config, a part, a reward or a data set has a meaning, every number a range: in `mmrl show`, on the page."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.views import Privileged
from mmrl.app.config.algorithm import Assembly
from mmrl.app.config.run import RunConfig
from mmrl.app.inspect.settings import COMMON, Setting, settings_of
from mmrl.app.inspect.things import CLASSES, PLUG_INS, Thing, classes, classes_called, keys_inside, names_of, plug_in
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.training.optim import OptimizerSettings
from tests.support.each import for_each

TABLES_OF_A_RUN = {"policy", "data", "reward", "algorithm", "sampler", "evaluation", "checkpoint", "trackers", "cluster"}
INNER = {"optimizer", "health", "alarm", "args", "sampling", "lora", "video", "also", "call", "transform"}
NUMBER = re.compile(r'(?<!")\b(number|integer)\b(?!")')
TABLE = re.compile(r"\btable ([A-Z]\w*)")


def tables_below(cls: type, seen: set[type]) -> Iterator[type]:
    """The class and every class that a field of it holds."""
    if cls in seen or cls is Assembly:
        return
    seen.add(cls)
    yield cls
    for hint in get_type_hints(cls, include_extras=True).values():
        for inner in classes_in(hint):
            yield from tables_below(inner, seen)


def classes_in(hint: object) -> Iterator[type]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for one in get_args(hint):
        yield from classes_in(one)


CONFIG = [
    *tables_below(RunConfig, seen := set()),
    *tables_below(TextPolicyConfig, seen),
    *tables_below(FlowPolicyConfig, seen),
    Privileged,
]


def silent(settings: Sequence[Setting]) -> list[str]:
    return [one.name for one in settings if not one.meaning]


def test_the_tables_of_a_config_are_found():
    assert {OptimizerSettings, TextPolicyConfig, FlowPolicyConfig} < set(CONFIG)
    assert len(CONFIG) > 15


@for_each("cls", [*CONFIG, Algorithm], ids=lambda cls: cls.__name__)
def test_every_key_of_a_config_has_a_meaning(cls: type):
    written = {
        "policy",
        "data",
        "reward",
        "algorithm",
        "sampler",
        "evaluation",
        "checkpoint",
        "trackers",
    }  # chapters of their own
    lacking = [name for name in silent(settings_of(cls)) if not (cls is RunConfig and name in written)]
    assert lacking == [], f"{cls.__module__}.{cls.__name__} says nothing about {lacking}: write a sentence below each field"


def test_every_key_of_a_config_stands_on_its_page():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "config.md").read_text(encoding="utf-8")
    keys = [(cls.__name__, one) for cls in CONFIG for one in keys_inside(cls) if one.name not in INNER | TABLES_OF_A_RUN]
    lacking = [f"{cls}.{one.name}" for cls, one in keys if f"| `{one.name}` | {one.type.replace('|', chr(92) + '|')}" not in page]
    assert lacking == [], "give their class a chapter in docs/pages/config.py"


@pytest.fixture(scope="module")
def things() -> list[Thing]:
    """All that `mmrl ls` lists and `mmrl show` prints."""
    plug_ins = [plug_in(name, kind) for kind in PLUG_INS for name in names_of(kind)]
    return [*plug_ins, *(thing for kind in CLASSES for listed in classes(kind) for thing in classes_called(listed.name))]


def test_every_setting_that_show_prints_has_a_meaning(things: list[Thing]):
    lacking = [f"{thing.kind} {thing.name}: {', '.join(names)}" for thing in things if (names := silent(thing.settings))]
    assert lacking == [], "write a sentence below each field, or a line under Args:\n" + "\n".join(lacking)


def test_every_number_that_is_shown_has_a_range(things: list[Thing]):
    described = "a family of models"  # no config sets what a family says of itself
    numbers = [(thing, one) for thing in things for one in thing.settings if NUMBER.search(one.type) and thing.kind != described]
    assert len(numbers) > 200
    assert [f"{thing.name}.{one.name}" for thing, one in numbers if not one.range] == []


def test_every_table_inside_another_is_shown_too(things: list[Thing]):
    known = {*(cls.__name__ for cls in CONFIG), *(thing.name for thing in things)}
    named = {(thing.name, word) for thing in things for one in thing.settings for word in TABLE.findall(one.type)}
    assert {(name, word) for name, word in named if word not in known} == set()


@dataclass(frozen=True)
class Silent:
    """A part."""

    level: float = 1.0
    """A word of its own."""
    eps: float = 0.1


def test_a_key_without_words_is_found():
    assert silent(settings_of(Silent)) == ["eps"], "words of shipped parts do not reach classes of another package"


def test_shared_words_stand_where_a_class_says_nothing_and_nowhere_else():
    from mmrl.algorithms.advantages.group import GroupNorm, MedianNorm

    shared = COMMON["mmrl.algorithms.advantages"]["eps"]
    found = {cls: next(one.meaning for one in settings_of(cls) if one.name == "eps") for cls in (GroupNorm, MedianNorm)}
    assert found[GroupNorm] == shared and found[MedianNorm] not in ("", shared)
