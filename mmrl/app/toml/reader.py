"""Tables of a config as objects: one pass over a table checks its keys, reads every value by its type and makes the object."""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from mmrl.app.toml.tables import KeyPath, Table, Values
from mmrl.runtime.blame import in_words
from mmrl.runtime.near import did_you_mean, edits, nearest
from mmrl.runtime.ranges import fault_of, hints_of

NONE = "none"
"""TOML has no null: this word is None for a field that may be None and has no such word of its own."""
REST = "args"
"""A dataclass with a field of this name takes all keys that it does not know, for whoever does."""
RESERVED = ("kind", "use", "coef")
"""Words of a part's table; a part's own field of that name is written with an underscore: `kind_ = "k2"`."""
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
NUMBERS = frozenset({int, float})
T = TypeVar("T")


class UnknownKeyError(ValueError):
    """Nothing reads this key of a table, and none of the keys beside it is like it."""

    def __init__(self, message: str, path: KeyPath):
        super().__init__(message)
        self.path = path


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
        own: what is there now, whose fields stay where the table says nothing; None: the defaults stay.
        ready: fields that are objects already, whatever the table says of them.
        beside: keys of the same table that others read.
        reserved: words that a field of that name is written with an underscore for.

    Raises ValueError, naming place and key, where a key is unknown or missing, or a value is not of its field's type.
    """
    values, rest, written = dict(ready or {}), {}, keys_of_fields(cls, reserved)
    if REST in written:
        rest = {key: item for key, item in given.items() if key not in written or key == REST}
        for needed in (f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING):  # pyright: ignore[reportArgumentType] - a dataclass
            check_slip(rest, needed, path, table) if needed not in given else None
        values = {REST: rest, **values}
    check_keys([key for key in given if key not in rest], [*beside, *written], path, table)
    kept = {} if own is None else {name: getattr(own, name) for name in written.values()}
    for key, item in given.items():
        name = written.get(key)
        if name is not None and name not in values:
            kept[name] = read_field(hints_of(cls)[name], item, (*path, key), table, kept.get(name))
    return plain(cls, kept | values, path, table)


def settings(
    function: Callable[..., object],
    given: Mapping[str, object],
    path: KeyPath,
    table: Table,
    *,
    skip: int = 0,
    beside: Sequence[str] = (),
) -> Values:
    """The keywords to call a class or function with, the first `skip` arguments aside; errors and `beside` are as in `make`.

    The fields of a dataclass are read by their types. Of other classes and functions the keys alone are known.
    """
    if not (inspect.isclass(function) and is_dataclass(function)):
        parameters = list(inspect.signature(function).parameters.values())[skip:]
        check_keys(given, [*beside, *(p.name for p in parameters if p.kind in BY_NAME)], path, table)
        return dict(given)
    written, hints, found = keys_of_fields(function, RESERVED, skip), hints_of(function), Values()
    check_keys(given, [*beside, *written], path, table)
    for key in (key for key in written if key in given):
        name, at = written[key], (*path, key)
        found[name] = typed_value(hints[name], read_field(hints[name], given[key], at, table), at, table)
    return found


def refuse_missing(function: Callable[..., object], given: Collection[str], path: KeyPath, table: Table, skip: int = 0) -> None:
    """Raise ValueError for a call that lacks an argument without a default, `skip` leading ones aside."""
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    needed = [p.name for p in parameters if p.kind in BY_NAME and p.default is p.empty and p.name not in given]
    if needed:
        raise ValueError(f"{table.at((*path, needed[0]))} is missing")


def instance(
    cls: Callable[..., object], values: Mapping[str, object], path: KeyPath, table: Table, is_checked: bool = True
) -> Any:
    """An object of a class, or ValueError naming who said the values that it refuses.

    `is_checked` is False where values hold rewards, which the fields may not be for.
    """
    if not is_checked and inspect.isclass(cls) and is_dataclass(cls):
        return plain(cls, dict(values), path, table)
    try:
        return cls(**values)
    except ValueError as error:
        raise in_words(f"{table.at(path)}: {error}", [error]) from error


def read_each(given: Mapping[str, Any], read_one: Callable[[str, Any], T]) -> dict[str, T]:
    """Every value of a table as it is read; a ValueError tells the faults of all."""
    found, faults = dict[str, T](), list[ValueError]()
    for key, value in given.items():
        try:
            found[key] = read_one(key, value)
        except ValueError as error:
            faults.append(error)
    if len(faults) > 1:
        raise ValueError("; ".join(map(str, faults))) from faults[0]
    if faults:
        raise faults[0]
    return found


def check_keys(given: Collection[str], known: Sequence[str], path: KeyPath, table: Table) -> None:
    """Raise ValueError for keys that nothing knows; of several the likeliest slip comes first."""
    unknown = [key for key in given if key not in known]
    if unknown:
        slips = unknown if len(unknown) > 1 else []
        key = min(slips, key=lambda key: min((edits(key, name) for name in known), default=0), default=unknown[0])
        others = ", ".join(other for other in unknown if other != key)
        message = f"{table.at((*path, key))} is unknown: {did_you_mean(key, known)}" + (f"; so is {others}" if others else "")
        raise ValueError(message) if nearest(key, known) else UnknownKeyError(message, (*path, key))


def check_slip(given: Collection[str], wanted: str, path: KeyPath, table: Table) -> None:
    """Raise ValueError for a key that was probably meant to be `wanted`, the missing word that says what a table is about."""
    if wanted not in given:
        check_keys([key for key in given if nearest(key, [wanted])], [wanted], path, table)


def read_field(hint: object, value: object, path: KeyPath, table: Table, own: object = None) -> object:
    """The value of a dataclass's field, its tables read; the dataclass itself checks the type of what is left."""
    is_none = value == NONE and NoneType in get_args(hint) and NONE not in choices(hint)[1]
    return None if is_none else read(hint, value, path, table, own)


def read(hint: object, value: object, path: KeyPath, table: Table, own: object = None) -> object:
    """A value with its tables turned into the dataclasses of a type.

    Raises ValueError for a text or truth value for a number, which Python or pydantic would take, or a number out of its range.
    """
    classes = dataclasses_in(hint)
    if isinstance(value, Mapping) and classes and get_origin(hint) is tuple:
        raise ValueError(f"{table.at(path)} is one table, and may be several: write [[{'.'.join(path)}]], in a shell [{{...}}]")
    if isinstance(value, Mapping) and classes:
        return read_table(classes, value, path, table, own)
    if isinstance(value, list | tuple) and classes:
        each = get_args(hint)[0] if get_origin(hint) is tuple else hint
        return [read(each, item, (*path, str(i)), table) for i, item in enumerate(value)]
    fault = kind_fault(hint, value) or fault_of(hint, value)
    if fault:
        raise ValueError(f"{table.at(path)} is {value!r}: {fault}")
    return value


def read_table(classes: Sequence[type], value: Mapping[str, object], path: KeyPath, table: Table, own: object) -> object:
    """One of several dataclasses: the one that stands there, the one whose `kind` the table names, or whichever the keys fit."""
    kind = getattr(own, "kind", None)
    # a table that names another kind of thing starts from that one's defaults
    if type(own) in classes and (kind != type(own).__name__ or value.get("kind", kind) == kind):
        return make(type(own), value, path, table, own)
    named = [cls for cls in classes if "kind" in value and getattr(cls, "kind", None) == value["kind"]] or list(classes)
    if len(named) == 1:
        return make(named[0], value, path, table)
    hints = {name: hint for cls in named for name, hint in hints_of(cls).items()}
    check_keys(value, list(hints), path, table)
    return {key: read(hints[key], item, (*path, key), table) for key, item in value.items()}


def typed_value(hint: object, value: object, path: KeyPath, table: Table) -> object:
    """A value as its type (else ValueError), as far as pydantic knows it: a plug-in may name classes of its own."""
    try:
        adapter(hint)
    except PydanticUserError:
        return value
    return plain(hint, value, path, table)


def plain(kind: object, value: object, path: KeyPath, table: Table) -> Any:
    """`value` as the type `kind`; ValueError, naming file and key, where it is not one."""
    try:
        return adapter(kind).validate_python(value)
    except ValidationError as error:
        causes = [one.get("ctx", {})["error"] for one in error.errors() if one["type"] == "value_error"]
        raise in_words("; ".join(problems(error, value, path, table)), causes) from None


@lru_cache(maxsize=256)
def adapter(kind: Any) -> Any:
    """pydantic's validator of a type; making one takes longer than using it."""
    return TypeAdapter(kind)


def problems(error: ValidationError, value: object, path: KeyPath, table: Table) -> list[str]:
    """One sentence for each key pydantic refused; a dataclass that refuses its own values names the key itself."""
    found: dict[str, list[str]] = {}
    meant: dict[str, str] = {}
    for one in error.errors():
        at = (*path, *keys_of(one["loc"], value, one["type"] == "missing"))
        text = one["msg"].removeprefix("Value error, ").replace("a valid tuple", 'a list in brackets, as in ["a", "b"]')
        if one["type"] == "value_error":
            found.setdefault(f"{table.origin(at) or 'config'}: {text}", [])
        elif one["type"] == "missing":
            found.setdefault(f"{table.at(at)} is missing", [])
        else:
            place = f"{table.at(at)} is {one['input']!r}"
            found.setdefault(place, []).append(text[0].lower() + text[1:])
            words = re.findall(r"'([^']*)'", one.get("ctx", {}).get("expected", "") if one["type"] == "literal_error" else "")
            if isinstance(one["input"], str) and (near := nearest(one["input"], words)):
                meant[place] = f"; did you mean {near!r}?"
            elif isinstance(one["input"], str) and one["input"].startswith(("[", "{")):
                meant[place] = "; a shell takes quotes away: put the whole word inside '...', and texts in it inside \"...\""
    return [f"{place}: {' or '.join(texts)}{meant.get(place, '')}" if texts else place for place, texts in found.items()]


def keys_of(location: Sequence[Any], value: Any, missing: bool) -> Iterator[str]:
    """The keys in a pydantic location, without the names of types it tried."""
    for key in location:
        is_entry = isinstance(value, list | tuple) and isinstance(key, int) and key < len(value)
        if is_entry or (isinstance(value, Mapping) and key in value):
            value = value[key]
            yield str(key)
    if missing:
        yield str(location[-1])


def keys_below(hint: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of all keys that the dataclasses of a type take, tables in tables included, but not those of lists."""
    if get_origin(hint) is not tuple:
        for name, below in (pair for cls in dataclasses_in(hint) for pair in hints_of(cls).items()):
            yield (*path, name)
            yield from keys_below(below, (*path, name))


def keys_of_fields(cls: type, reserved: Sequence[str], skip: int = 0) -> dict[str, str]:
    """Key in a table -> field of a dataclass, `skip` leading ones aside."""
    return {f"{name}_" if name in reserved else name: name for name in list(hints_of(cls))[skip:]}


def dataclasses_in(hint: object) -> list[type]:
    """The dataclasses of a type: itself, or inside unions, tuples and lists."""
    if inspect.isclass(hint) and is_dataclass(hint):
        return [hint]
    return [cls for arg in get_args(hint) if get_origin(hint) is not Literal for cls in dataclasses_in(arg)]


def kind_fault(hint: object, value: object) -> str:
    """How a text, truth value or whole number is of the wrong kind; empty where it is not, or where pydantic sees it."""
    kinds, words = choices(hint)
    if not kinds or type(value) in kinds or (isinstance(value, str) and value in words):
        return ""
    if isinstance(value, str | bool) and kinds <= NUMBERS:
        return "input should be a number" + "".join(f" or {word!r}" for word in words)
    return "input should be true or false" if isinstance(value, str | int) and kinds == {bool} else ""


@cache
def choices(hint: object) -> tuple[frozenset[object], tuple[Any, ...]]:
    """The types and the words that a value may be: `float | Literal["auto"] | None` -> ({float}, ("auto",))."""
    if get_origin(hint) is Literal:
        return frozenset(), get_args(hint)
    if get_origin(hint) is Annotated:
        return choices(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        each = [choices(one) for one in get_args(hint)]
        return frozenset[object]().union(*(kinds for kinds, _ in each)), tuple(word for _, words in each for word in words)
    return frozenset({hint} - {NoneType}), ()
