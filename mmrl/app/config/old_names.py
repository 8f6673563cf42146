"""Keys and kinds of configs that were called otherwise: refused where a hand wrote them, mapped where a run saved them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mmrl.app.toml.tables import KeyPath, Table, dotted_key

KEYS: dict[KeyPath, KeyPath] = {
    ("budget",): ("micro_batch",),
    ("algorithm", "share"): ("algorithm", "aggregation"),
}
"""Old key -> the key now."""
WORDS: dict[KeyPath, dict[str, str]] = {("policy", "prefix"): {"shared": "packed"}}
"""Key -> old word of it -> the word now."""
KINDS = {"SamplerCorrection": "RolloutCorrection"}
"""Old kind of a part of an algorithm -> the kind now."""


def refuse_old_names(table: Table) -> None:
    """Refuse a config that says something in words of before.

    Raises:
        ValueError: naming place, old word and the word now.
    """
    for old, new in KEYS.items():
        if has(table.values, old):
            raise ValueError(f"{table.at(old)} is called {dotted_key(new)} now: write {new[-1]} in its place")

    for path, old, new in old_words(table):
        raise ValueError(f"{table.at(path)} is {old!r}, which is called {new!r} now: write {new!r}")

    def refuse(path: KeyPath, kind: str) -> str:
        raise ValueError(f"{table.at(path)} is {kind!r}, which is called {KINDS[kind]} now: write {KINDS[kind]!r}")

    map_kinds(table.values.get("algorithm"), ("algorithm",), refuse)


def translate(table: Table) -> None:
    """Put the words of now into a config that a run saved; who said a value stays known."""
    for old, new in KEYS.items():
        if has(table.values, old) and not has(table.values, new):
            holder: Any = table.values
            for key in old[:-1]:
                holder = holder[key]
            origin = table.origin(old) or "config"
            value = holder.pop(old[-1])
            table.origins = {path: by for path, by in table.origins.items() if path[: len(old)] != old}
            table.set(new, value, origin)
    for path, _, word in list(old_words(table)):
        table.set(path, word, table.origin(path) or "config")
    map_kinds(table.values.get("algorithm"), ("algorithm",), lambda _, kind: KINDS[kind])


def old_words(table: Table) -> Iterator[tuple[KeyPath, str, str]]:
    """(path, old word, the word now) of every value that is called otherwise now."""
    for path, words in WORDS.items():
        value: Any = table.values
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, str) and value in words:
            yield path, value, words[value]


def is_of_a_run(file: Path) -> bool:
    """Is it the config.toml of a run's folder, which mmrl wrote itself?"""
    return file.name == "config.toml" and (file.parent / "versions.json").is_file()


def has(values: object, path: KeyPath) -> bool:
    """Does a table hold a value at a path?"""
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True


def map_kinds(values: object, path: KeyPath, new: Callable[[KeyPath, str], str]) -> None:
    """Replace every old kind inside a table, in place, by `new` of its path and itself."""
    if isinstance(values, list):
        for i, item in enumerate(values):
            map_kinds(item, (*path, str(i)), new)
    if isinstance(values, dict):
        for key, item in values.items():
            if key == "kind" and isinstance(item, str) and item in KINDS:
                values[key] = new((*path, key), item)
            else:
                map_kinds(item, (*path, key), new)
