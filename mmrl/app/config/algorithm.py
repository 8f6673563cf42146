"""`[algorithm]` of a config -> an Algorithm: a preset, and the parts that replace or alter the preset's own.

A part's kind is its class name. It fits the slots whose call it answers, so a new part needs no entry anywhere.
"""

import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from importlib import import_module
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.plugins import resolve as plugins
from mmrl.app.toml.did_you_mean import did_you_mean
from mmrl.app.toml.keys import check_keys, check_slip, check_value, fields_of
from mmrl.app.toml.tables import KeyPath, Table, dotted
from mmrl.app.toml.values import plain

TOP: KeyPath = ("algorithm",)
DEFAULT_PRESET = "grpo"
ROOMS = ("mmrl.algorithms", "mmrl.flow")
NONE = "none"
RESERVED = ("kind", "use", "coef")
"""Words of a part's table; a part's own field of that name is written with an underscore: `kind_ = "k2"`."""


@dataclass(frozen=True)
class Slot:
    """Where a part goes: how it is called there, and whether several may sit side by side."""

    method: str = "__call__"
    arguments: tuple[str, ...] = ()
    many: bool = False

    def takes(self, part: type) -> bool:
        """Whether the class answers the slot's call."""
        function = inspect.getattr_static(part, self.method, None)
        if not callable(function):
            return False
        return not self.arguments or tuple(inspect.signature(function).parameters)[1:] == self.arguments


SLOTS = {
    "objective": Slot(arguments=("readings", "batch"), many=True),
    "advantage": Slot(arguments=("scores", "rollouts")),
    "aggregation": Slot(arguments=("batch", "counts")),
    "importance": Slot(arguments=("batch", "counts"), many=True),
    "masks": Slot(arguments=("rollouts",), many=True),
    "shaping": Slot(arguments=("scores", "rollouts", "frozen"), many=True),
    "planner": Slot("revise"),
    "schedule": Slot("at"),
    "ema_decay": Slot(arguments=("step",)),
}


@dataclass(frozen=True)
class Assembly:
    """An algorithm with its pedigree."""

    preset: str
    algorithm: Algorithm
    label: str
    """`dapo + advantage.scale`: the preset and every part or field of a part that differs from it."""
    uses: Mapping[str, str] = field(default_factory=dict)
    """`algorithm.advantage` -> `my.py:Mine`, for parts of the user's own."""


def assemble(table: Table) -> Assembly:
    """The algorithm that a config's `[algorithm]` describes.

    Raises:
        ValueError: an unknown preset, slot, kind or key, or a value of the wrong type; the message names file and key.
    """
    values = table.values.get("algorithm", {})
    if not isinstance(values, Mapping):
        raise ValueError(f'{table.at(TOP)} is {values!r}: write [algorithm] with preset = "{values}"')
    name = values.get("preset", DEFAULT_PRESET)
    base = preset(name, table.at((*TOP, "preset")))
    known = ("preset", *(f.name for f in fields(Algorithm)))
    check_keys(values, known, TOP, table)
    uses: dict[str, str] = {}
    builder = _Builder(table, uses)
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if key in SLOTS:
            changes[key] = builder.slot(key, value, getattr(base, key))
        elif key != "preset":
            check_value(get_type_hints(Algorithm)[key], value, (*TOP, key), table)
            changes[key] = plain(get_type_hints(Algorithm)[key], value, (*TOP, key), table)
    algorithm = replace(base, **changes)
    differing = [path for slot in SLOTS for path in differences(getattr(base, slot), getattr(algorithm, slot), slot)]
    return Assembly(name, algorithm, " + ".join([name, *differing]), uses)


def preset(name: Any, where: str = "algorithm.preset") -> Algorithm:
    """The preset of this name.

    Raises:
        ValueError: there is none.
    """
    known = presets()
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{where} is {name!r}: {did_you_mean(str(name), known)}")
    return known[name]


def presets() -> Mapping[str, Algorithm]:
    """All presets by name, those of text first."""
    from mmrl.algorithms.presets import PRESETS

    return PRESETS


@dataclass(frozen=True)
class _Builder:
    """Turns the tables of one config into parts."""

    table: Table
    uses: dict[str, str]

    def slot(self, name: str, value: Any, own: Any) -> Any:
        """What sits in a slot of the algorithm after the config has spoken; `own` is the preset's."""
        path = (*TOP, name)
        if not SLOTS[name].many:
            return self.part(name, value, path, own)
        if isinstance(value, Mapping):
            return self._altered(name, value, path, own)
        if not isinstance(value, list):
            raise ValueError(f"{self.table.at(path)} is a list of parts: write [[{dotted(path)}]]")
        return tuple(self._entry(name, item, (*path, str(i)), None) for i, item in enumerate(value))

    def part(self, slot: str, value: Any, path: KeyPath, own: Any) -> Any:
        """One part: the user's (`use`), one of a kind (`kind`), or the preset's own with other fields."""
        if not isinstance(value, Mapping):
            raise ValueError(f'{self.table.at(path)} is a table, not {value!r}: write [{dotted(path)}] with kind = "..."')
        settings = {key: item for key, item in value.items() if key not in ("kind", "use")}
        words = RESERVED if slot == "objective" else ("kind", "use")
        if "use" in value and "kind" in value:
            raise ValueError(f"{self.table.at(path)} has both kind and use: keep kind for a part of mmrl, use for one of yours")
        if "use" in value:
            plain(str, value["use"], (*path, "use"), self.table)
            self.uses[dotted(path)] = value["use"]
            return made_of(plugins.load(value["use"], "algorithms"), settings, path, self.table, words)
        if "kind" in value:
            known = kinds(slot)
            if not isinstance(value["kind"], str) or value["kind"] not in known:
                where = self.table.at((*path, "kind"))
                raise ValueError(f"{where} is {value['kind']!r}: {did_you_mean(str(value['kind']), known)}")
            return made_of(known[value["kind"]], settings, path, self.table, words)
        if own is None:
            check_slip(settings, "kind", path, self.table)
            raise ValueError(f"{self.table.at(path)} has no kind: {did_you_mean('', kinds(slot))}")
        check_settings(type(own), settings, path, self.table, words)
        return made_of(type(own), settings_of(own, settings), path, self.table, words)

    def _altered(self, name: str, value: Mapping[str, Any], path: KeyPath, own: Sequence[Any]) -> Any:
        """The preset's list with some of its entries altered: `algorithm.objective.0.high=0.28`."""
        entries = list(own)
        for key, item in value.items():
            places = [str(i) for i in range(len(entries))]
            if key not in places:
                raise ValueError(
                    f"{self.table.at((*path, key))} is not there: {dotted(path)} of the preset has {len(entries)} entries, "
                    f"counted from 0 ({dotted(path)}.0...): {did_you_mean(key, places)}; "
                    f"to replace them all write [[{dotted(path)}]]"
                )
            entries[int(key)] = self._entry(name, item, (*path, key), entries[int(key)])
        return tuple(entries)

    def _entry(self, name: str, item: Any, path: KeyPath, own: Any) -> Any:
        if name != "objective":
            return self.part(name, item, path, own)
        coef, term = own or (1.0, None)
        rest = item
        if isinstance(item, Mapping):
            check_value(float, item.get("coef"), (*path, "coef"), self.table)
            coef = plain(float, item.get("coef", coef), (*path, "coef"), self.table)
            rest = {key: value for key, value in item.items() if key != "coef"}
        return coef, self.part(name, rest, path, term)


def made_of(cls: Callable[..., Any], settings: Mapping[str, Any], path: KeyPath, table: Table, beside: Sequence[str] = ()) -> Any:
    """An object of a part's or a reward's class from its settings, checked; a function with settings keeps them.

    `beside` are keys of the same table that others read, for the did-you-mean.

    Raises:
        ValueError: an unknown key, or a value of the wrong type.
    """
    check_settings(cls, settings, path, table, beside)
    if inspect.isclass(cls) and is_dataclass(cls):
        names = {written(name): name for name in fields_of(cls)}
        return plain(cls, with_none(cls, {names[key]: value for key, value in settings.items()}), path, table)
    if inspect.isclass(cls):
        return cls(**settings)
    return partial(cls, **settings) if settings else cls


def check_settings(
    cls: Callable[..., Any], settings: Mapping[str, Any], path: KeyPath, table: Table, beside: Sequence[str] = ()
) -> None:
    """Refuse keys that the class or function does not know, at all depths, and plain values of the wrong kind.

    Raises:
        ValueError: naming place and key.
    """
    if not (inspect.isclass(cls) and is_dataclass(cls)):
        parameters = inspect.signature(cls).parameters.values()
        known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        check_keys(settings, [*beside, *(known if inspect.isclass(cls) else known[1:])], path, table)
        return
    names = {written(name): name for name in fields_of(cls)}
    check_keys(settings, [*beside, *names], path, table)
    for key, value in with_none(cls, {names[key]: value for key, value in settings.items()}).items():
        check_value(fields_of(cls)[key], value, (*path, written(key)), table)


def settings_of(own: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a part with some changed, those of settings inside it too: `schedule.times.count=3` keeps the others."""
    values = {written(f.name): getattr(own, f.name) for f in fields(own) if f.init}
    return values | {key: inner(values.get(key), value) for key, value in changes.items()}


def inner(own: Any, changes: Any) -> Any:
    """Changed settings of what a part holds; another `kind` of thing starts from its own defaults."""
    if not is_dataclass(own) or not isinstance(changes, Mapping):
        return changes
    values = {f.name: getattr(own, f.name) for f in fields(own)}
    is_other = values.get("kind") == type(own).__name__ and changes.get("kind", values["kind"]) != values["kind"]
    return changes if is_other else values | dict(changes)


def written(name: str) -> str:
    """How a table writes the field `name` of a part."""
    return f"{name}_" if name in RESERVED else name


@cache
def kinds(slot: str) -> dict[str, type]:
    """Kind -> class, of every part that fits the slot."""
    found: dict[str, type] = {}
    for room in ROOMS:
        for module in pkgutil.walk_packages(import_module(room).__path__, room + "."):
            for name, value in vars(import_module(module.name)).items():
                own = inspect.isclass(value) and value.__module__ == module.name and not name.startswith("_")
                if own and is_dataclass(value) and SLOTS[slot].takes(value):
                    assert name not in found, f"two parts are called {name}: {found[name].__module__} and {module.name}"
                    found[name] = value
    return found


def differences(before: Any, after: Any, path: str) -> list[str]:
    """Dotted paths of what differs between two slots' contents."""
    if before == after:
        return []
    if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        if isinstance(before[0], float):
            return [f"{path}.coef"] * (before[0] != after[0]) + differences(before[1], after[1], path)
        return [d for i, (a, b) in enumerate(zip(before, after, strict=True)) for d in differences(a, b, f"{path}.{i}")]
    if is_dataclass(before) and type(before) is type(after):
        return [f"{path}.{f.name}" for f in fields(before) if getattr(before, f.name) != getattr(after, f.name)]
    return [path]


def with_none(cls: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null: the word "none" is None for a field that may be None and has no such word of its own."""
    return {key: None if value == NONE and key in may_be_none(cls) else value for key, value in settings.items()}


@cache
def may_be_none(cls: type) -> frozenset[str]:
    """The fields for which the word "none" stands for None."""
    hints = get_type_hints(cls)
    return frozenset(name for name, hint in hints.items() if NoneType in get_args(hint) and NONE not in allowed_words(hint))


def allowed_words(hint: Any) -> set[Any]:
    """What Literals inside a type allow."""
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return {word for inner in get_args(hint) for word in allowed_words(inner)}
