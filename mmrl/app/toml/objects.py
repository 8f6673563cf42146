"""Tables of a config as objects: every value is checked once, where it becomes a field."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import PydanticUserError

from mmrl.app.toml.keys import check_keys, check_range, check_scalar, check_slip
from mmrl.app.toml.tables import KeyPath, Table, Values
from mmrl.app.toml.values import adapter, plain

NONE = "none"
"""TOML has no null: this word is None for a field that may be None and has no such word of its own."""
REST = "args"
"""A dataclass with a field of this name takes all keys that it does not know, for whoever does."""
RESERVED = ("kind", "use", "coef")
"""Words of a part's table; a part's own field of that name is written with an underscore: `kind_ = "k2"`."""
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
T = TypeVar("T")


def make(
    cls: type[T],
    given: Mapping[str, object],
    path: KeyPath,
    table: Table,
    own: T | None = None,
    *,
    ready: Mapping[str, object] | None = None,
    beside: Sequence[str] = (),
    reserved: Sequence[str] = (),
) -> T:
    """A dataclass from its table.

    Args:
        own: what stands there now, whose fields stay where the table says nothing; None: the defaults stay.
        ready: fields that are objects already, whatever the table says of them.
        beside: keys of the same table that others read.
        reserved: words that a field of that name is written with an underscore for.

    Raises:
        ValueError: a key is unknown or missing, or a value is not of its field's type; names place and key.
    """
    ready = ready or {}
    written = {f"{name}_" if name in reserved else name: name for name in fields_of(cls)}
    known, rest = dict(given), {}
    if REST in written:
        rest = {REST: {key: item for key, item in given.items() if key not in written or key == REST}}
        known = {key: item for key, item in given.items() if key not in rest[REST]}
        for needed in (f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING):  # pyright: ignore[reportArgumentType]
            check_slip(rest[REST], needed, path, table) if needed not in given else None
    check_keys(known, [*beside, *written], path, table)
    kept = {} if own is None else {name: getattr(own, name) for name in written.values()}
    changed = {
        written[key]: field_value(cls, written[key], item, (*path, key), table, kept.get(written[key]))
        for key, item in known.items()
        if key in written and written[key] not in ready
    }
    return plain(cls, kept | changed | rest | dict(ready), path, table)


def field_value(cls: type, name: str, value: object, path: KeyPath, table: Table, own: object = None) -> object:
    """A value for the field `name` of a dataclass, its tables read; the dataclass itself checks the type of what is left."""
    return None if value == NONE and name in may_be_none(cls) else read(fields_of(cls)[name], value, path, table, own)


def read(hint: object, value: object, path: KeyPath, table: Table, own: object = None) -> object:
    """A value with its tables turned into the dataclasses of a type; texts or truth values for numbers are refused."""
    classes = dataclasses_in(hint)
    if isinstance(value, Mapping) and classes:
        return read_table(classes, value, path, table, own)
    if isinstance(value, list | tuple) and classes:
        return [read(hint, item, (*path, str(i)), table) for i, item in enumerate(value)]
    if isinstance(value, str | bool | int):
        check_scalar(hint, value, path, table)
    check_range(hint, value, path, table)
    return value


def read_table(classes: Sequence[type], value: Mapping[str, object], path: KeyPath, table: Table, own: object) -> object:
    """One of several dataclasses: the one that stands there, the one whose `kind` the table names, or whichever the keys fit."""
    if type(own) in classes and stays(own, value):
        return make(type(own), value, path, table, own)
    named = [cls for cls in classes if "kind" in value and getattr(cls, "kind", None) == value["kind"]] or list(classes)
    if len(named) == 1:
        return make(named[0], value, path, table)
    hints = {name: hint for cls in named for name, hint in fields_of(cls).items()}
    check_keys(value, list(hints), path, table)
    return {key: read(hints[key], item, (*path, key), table) for key, item in value.items()}


def stays(own: object, value: Mapping[str, object]) -> bool:
    """Does a table alter what stands there? One that names another kind of thing starts from that one's defaults."""
    kind = getattr(own, "kind", None)
    return kind != type(own).__name__ or value.get("kind", kind) == kind


def settings(
    function: Callable[..., object],
    given: Mapping[str, object],
    path: KeyPath,
    table: Table,
    *,
    skip: int = 0,
    beside: Sequence[str] = (),
) -> Values:
    """The keywords to call a class or function with, without calling it.

    The fields of a dataclass are read by their types. Of other classes and functions the keys alone are known.

    Args:
        skip: leading arguments that the caller gives by position.

    Raises:
        ValueError: an unknown key, a value of the wrong type, or something missing.
    """
    if not (inspect.isclass(function) and is_dataclass(function)):
        parameters = list(inspect.signature(function).parameters.values())[skip:]
        check_keys(given, [*beside, *(p.name for p in parameters if p.kind in BY_NAME)], path, table)
        return dict(given)
    own = [f for f in fields(function) if f.init][skip:]
    written = {f"{f.name}_" if f.name in RESERVED else f.name: f.name for f in own}
    check_keys(given, [*beside, *written], path, table)
    return {
        name: typed_value(
            fields_of(function)[name], field_value(function, name, given[key], (*path, key), table), (*path, key), table
        )
        for key, name in written.items()
        if key in given
    }


def refuse_missing(function: Callable[..., object], given: Collection[str], path: KeyPath, table: Table, skip: int = 0) -> None:
    """Refuse a call that lacks an argument without a default, `skip` leading ones aside.

    Raises:
        ValueError: naming place and key.
    """
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    needed = [p.name for p in parameters if p.kind in BY_NAME and p.default is p.empty and p.name not in given]
    if needed:
        raise ValueError(f"{table.at((*path, needed[0]))} is missing")


def typed_value(hint: object, value: object, path: KeyPath, table: Table) -> object:
    """A value as its type, as far as pydantic knows the type: a plug-in may name classes of its own.

    Raises:
        ValueError: naming place and key.
    """
    try:
        adapter(hint)
    except PydanticUserError:
        return value
    return plain(hint, value, path, table)


def dataclasses_in(hint: object) -> list[type]:
    """The dataclasses of a type: itself, or inside unions, tuples and lists."""
    if inspect.isclass(hint) and is_dataclass(hint):
        return [hint]
    return [cls for arg in get_args(hint) if get_origin(hint) is not Literal for cls in dataclasses_in(arg)]


@cache
def fields_of(cls: type) -> Values:
    """The types of a dataclass's fields that can be given, by name."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in fields(cls) if f.init}  # pyright: ignore[reportArgumentType]


@cache
def may_be_none(cls: type) -> frozenset[str]:
    """The fields for which the word "none" stands for None."""
    hints = get_type_hints(cls)
    return frozenset(name for name, hint in hints.items() if NoneType in get_args(hint) and NONE not in allowed_words(hint))


def allowed_words(hint: object) -> set[Any]:
    """The words that Literals inside a type allow."""
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return {word for arg in get_args(hint) for word in allowed_words(arg)}
