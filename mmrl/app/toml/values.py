"""TOML values as Python types, checked by pydantic."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mmrl.app.toml.tables import KeyPath, Table


def plain(kind: object, value: object, path: KeyPath, table: Table) -> Any:
    """`value` as the type `kind`.

    Raises:
        ValueError: it is not one; the message names file and key.
    """
    try:
        return adapter(kind).validate_python(value)
    except ValidationError as error:
        raise ValueError("; ".join(problems(error, value, path, table))) from None


@lru_cache(maxsize=256)
def adapter(kind: Any) -> Any:
    """pydantic's validator of a type; making one takes longer than using it."""
    return TypeAdapter(kind)


def problems(error: ValidationError, value: object, path: KeyPath, table: Table) -> list[str]:
    """One sentence for each key pydantic refused; a dataclass that refuses its own values names the key itself."""
    found: dict[str, list[str]] = {}
    for one in error.errors():
        at = (*path, *keys_of(one["loc"], value, one["type"] == "missing"))
        text = one["msg"].removeprefix("Value error, ")
        if one["type"] == "value_error":
            found.setdefault(f"{table.origin(at) or 'config'}: {text}", [])
        elif one["type"] == "missing":
            found.setdefault(f"{table.at(at)} is missing", [])
        else:
            found.setdefault(f"{table.at(at)} is {one['input']!r}", []).append(text[0].lower() + text[1:])
    return [f"{place}: {' or '.join(texts)}" if texts else place for place, texts in found.items()]


def keys_of(location: Sequence[Any], value: Any, missing: bool) -> Iterator[str]:
    """The keys in a pydantic location, without the names of types it tried."""
    for key in location:
        is_entry = isinstance(value, list | tuple) and isinstance(key, int) and key < len(value)
        if is_entry or (isinstance(value, Mapping) and key in value):
            value = value[key]
            yield str(key)
    if missing:
        yield str(location[-1])
