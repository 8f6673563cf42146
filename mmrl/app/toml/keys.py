"""What a config may say in one place: its keys, at all depths, and values of the right kind."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from mmrl.app.toml.did_you_mean import did_you_mean, edits, nearest
from mmrl.app.toml.tables import KeyPath, Table

NUMBERS = frozenset({int, float})


def check_keys(values: Mapping[str, Any], known: Sequence[str], path: KeyPath, table: Table) -> None:
    """Refuse keys that nothing knows; of several the likeliest slip is named.

    Raises:
        ValueError: naming place, key and what was probably meant.
    """
    unknown = [key for key in values if key not in known]
    if unknown:
        slips = unknown if len(unknown) > 1 else []
        key = min(slips, key=lambda key: min((edits(key, name) for name in known), default=0), default=unknown[0])
        raise ValueError(f"{table.at((*path, key))} is unknown: {did_you_mean(key, known)}")


def check_slip(values: Mapping[str, Any], wanted: str, path: KeyPath, table: Table) -> None:
    """Where the word that says what a table is about is missing, refuse the key that was probably meant to be it.

    Raises:
        ValueError: a key is close to `wanted`, which is missing.
    """
    close = [key for key in values if nearest(key, [wanted])] if wanted not in values else []
    if close:
        key = min(close, key=lambda key: edits(key, wanted))
        raise ValueError(f"{table.at((*path, key))} is unknown: {did_you_mean(key, [wanted])}")


def check_value(kind: Any, value: Any, path: KeyPath, table: Table) -> None:
    """Refuse unknown keys of tables inside a value, and texts or truth values where numbers belong.

    Raises:
        ValueError: naming place and key.
    """
    classes = dataclasses_in(kind)
    if isinstance(value, Mapping) and classes:
        check_table(classes, value, path, table)
    elif isinstance(value, list | tuple) and classes:
        for i, item in enumerate(value):
            check_value(kind, item, (*path, str(i)), table)
    elif isinstance(value, str | bool | int):
        check_scalar(kind, value, path, table)


def check_table(classes: Sequence[type], value: Mapping[str, Any], path: KeyPath, table: Table) -> None:
    """As one of the classes; which one its `kind` says, where there are several."""
    named = [cls for cls in classes if "kind" in value and getattr(cls, "kind", None) == value["kind"]]
    hints = {name: hint for cls in named or classes for name, hint in fields_of(cls).items()}
    check_keys(value, list(hints), path, table)
    for key, item in value.items():
        check_value(hints[key], item, (*path, key), table)


def check_scalar(kind: Any, value: str | bool | int, path: KeyPath, table: Table) -> None:
    """Python takes True for 1 and pydantic takes "3" for 3: neither is what was meant."""
    allowed = frozenset(leaf_types(kind))
    if type(value) in allowed or not allowed:
        return
    if isinstance(value, str | bool) and allowed <= NUMBERS:
        raise ValueError(f"{table.at(path)} is {value!r}: input should be a number")
    if allowed == {bool}:
        raise ValueError(f"{table.at(path)} is {value!r}: input should be true or false")


def dataclasses_in(kind: Any) -> list[type]:
    """The dataclasses of a type: itself, or inside unions, tuples and lists."""
    if inspect.isclass(kind) and is_dataclass(kind):
        return [kind]
    return [cls for arg in get_args(kind) if get_origin(kind) is not Literal for cls in dataclasses_in(arg)]


@cache
def fields_of(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields that can be given, by name."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls) if f.init}


def leaf_types(kind: Any) -> Iterator[Any]:
    """int, float, str, ... of a type that is one of them or a union; anything else stands for itself."""
    if get_origin(kind) is Literal:
        yield from map(type, get_args(kind))
    elif get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from leaf_types(one)
    elif kind is not NoneType:
        yield kind
