"""Keys and kinds of configs that were called otherwise: refused where a hand wrote them, mapped where a run saved them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmrl.app.toml.tables import KeyPath, Table, dotted_key

KEYS: dict[KeyPath, KeyPath] = {
    ("budget",): ("micro_batch",),
    ("algorithm", "share"): ("algorithm", "aggregation"),
}
"""Old key -> the key now."""
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
    map_kinds(table.values.get("algorithm"), ("algorithm",), lambda _, kind: KINDS[kind])


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
