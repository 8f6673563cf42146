"""TOML tables with a memory of where every value came from: the file, the command line, a task."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Values = dict[str, Any]
"""A TOML table as Python reads it."""
KeyPath = tuple[str, ...]
"""Keys from the top of a config down to a value; places in lists are written as digits."""
COMMAND_LINE = "command line"
MOST_LEVELS = 50
"""Tables in tables: more than any config has, and less than Python's stack bears."""


@dataclass
class Table:
    """The values of a config, and who said each."""

    values: Values = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    """Every leaf's path -> "configs/a.toml", "command line", ..."""

    @classmethod
    def read(cls, file: Path) -> "Table":
        """A TOML file; ValueError where it is not TOML."""
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{file} is not TOML: {error}") from None
        return cls.of(values, str(file))

    @classmethod
    def of(cls, values: Values, origin: str, overrides: Iterable[str] = ()) -> "Table":
        """Values and overrides of the command line; ValueError for tables that are nested too deep, and as in `override`."""
        check_depth(values, origin)
        table = cls(values, {path: origin for path, _ in leaves(values)})
        for assignment in overrides:
            table.override(assignment)
        return table

    def override(self, assignment: str) -> None:
        """One `dotted.key=value` of the command line; the value is TOML, or else a bare string.

        Raises ValueError where it is not of that form, or the key leads nowhere.
        """
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{assignment!r} is no override: write key=value, as in steps=3, and quote names with blanks")
        self.set(tuple(key.strip().split(".")), toml_value(text), COMMAND_LINE)

    def set(self, path: KeyPath, value: object, origin: str) -> None:
        """Put a value (a table or list, too) at a path, replacing what is there."""
        check_depth(value, origin, len(path))
        holder: Any = self.values
        for depth, key in enumerate(path[:-1]):
            holder = _step(holder, key, path[: depth + 1])
        if isinstance(holder, list):
            _index(holder, path)
            holder[int(path[-1])] = value
        elif isinstance(holder, dict):
            holder[path[-1]] = value
        else:
            raise ValueError(f"{origin}: {dotted_key(path)} cannot be set: {dotted_key(path[:-1])} is {holder!r}, not a table")
        self.origins = {known: by for known, by in self.origins.items() if known[: len(path)] != path}
        self.origins |= {path + below: origin for below, _ in leaves(value)}

    def origin(self, path: KeyPath) -> str | None:
        """The origin of this value, or all origins of values in the table at this path; None where there is none."""
        said = [by for known, by in self.origins.items() if known[: len(path)] == path or path[: len(known)] == known]
        return " and ".join(dict.fromkeys(said)) or None

    def at(self, path: KeyPath) -> str:
        """`configs/a.toml: optimizer.lr`: the start of an error about this value, said or missing."""
        above = next((by for depth in range(len(path), -1, -1) if (by := self.origin(path[:depth]))), "config")
        return f"{above}: {dotted_key(path)}" if path else above


def leaves(values: object) -> Iterator[tuple[KeyPath, Any]]:
    """Paths and values of everything that is no table and no list of tables."""
    if isinstance(values, Mapping):
        items: Sequence[tuple[str, Any]] = list(values.items())
    elif isinstance(values, list) and values and all(isinstance(item, Mapping) for item in values):
        items = [(str(i), item) for i, item in enumerate(values)]
    else:
        yield (), values
        return
    for key, value in items:
        for path, leaf in leaves(value):
            yield (key, *path), leaf


def value_at(values: object, *path: str) -> Any:
    """The value at a path of tables and lists, or None where there is none: `value_at(config, "policy", "kind")`."""
    for key in path:
        if isinstance(values, list):
            values = values[int(key)] if key.isdigit() and int(key) < len(values) else None
        else:
            values = values.get(key) if isinstance(values, Mapping) else None
    return values


def toml_value(text: str) -> object:
    """`0.5`, `true`, `[1, 2]` and `"x"` as TOML reads them; anything else is the string itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def said_last(words: Sequence[str]) -> list[str]:
    """The words of a command line without every `key=value` whose key a later one says again."""
    keys = [word.partition("=")[0].strip() for word in words]
    return [word for i, word in enumerate(words) if "=" not in word or keys[i] not in keys[i + 1 :]]


def check_depth(value: object, origin: str, levels: int = 0) -> None:
    """Raises ValueError for more than MOST_LEVELS tables and lists inside each other, of which `levels` are around the value."""
    inside = [value]
    while inside:
        if levels > MOST_LEVELS:
            raise ValueError(f"{origin}: tables and lists are nested deeper than {MOST_LEVELS} levels")
        levels += 1
        holders = [one.values() if isinstance(one, Mapping) else one for one in inside if isinstance(one, Mapping | list)]
        inside = [item for holder in holders for item in holder]


def dotted_key(path: KeyPath) -> str:
    return ".".join(path)


def _step(holder: object, key: str, path: KeyPath) -> object:
    if isinstance(holder, list):
        return holder[_index(holder, path)]
    if not isinstance(holder, dict):
        raise ValueError(f"{COMMAND_LINE}: {dotted_key(path)} cannot be set: {dotted_key(path[:-1])} is {holder!r}, not a table")
    return holder.setdefault(key, {})


def _index(holder: list[Any], path: KeyPath) -> int:
    key = path[-1]
    if not key.isdigit() or int(key) >= len(holder):
        entries = f"{len(holder)} entries, 0 to {len(holder) - 1}" if holder else "no entries"
        raise ValueError(f"{COMMAND_LINE}: {dotted_key(path)} is not there: {dotted_key(path[:-1])} has {entries}")
    return int(key)
