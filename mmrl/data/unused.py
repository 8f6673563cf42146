"""Keys of a row's objects that nothing reads: `mmrl data check` names them; those that change what a row means are refused.

A layout lists, by the place of objects inside a row or file, the keys that it knows: {"objects": ("ref", "bbox")} lets
{"objects": {"bbox": [[1, 2, 30, 40]], "width": 640}} be told of as objects.width. The place of the row or file itself is "".
"""

from collections.abc import Iterator, Mapping, Sequence

from mmrl.data.readers import Cell
from mmrl.data.validate import Report

Known = Mapping[str, Sequence[str]]
"""Place -> the keys that are read there."""
Refused = Mapping[str, str]
"""Place and key -> what to do instead: {"messages.tool_calls": "write the call in its content"}."""


def note_unused(report: Report, values: Mapping[str, Cell], known: Known) -> None:
    """Count the keys of a row or file that are at known places and are not known there."""
    for place, keys in known.items():
        report.unused.update(_names(values, place, frozenset(keys)))


def refuse_keys(values: Mapping[str, Cell], refused: Refused) -> None:
    """Raise ValueError for a row with a key that is refused."""
    for place in dict.fromkeys(name.rpartition(".")[0] for name in refused):
        for name in _names(values, place):
            if name in refused:
                raise ValueError(f"the row has {name}: {refused[name]}")


def _names(values: Mapping[str, Cell], place: str, but: frozenset[str] = frozenset()) -> Iterator[str]:
    """The keys of all objects at a place that hold something, each with its place: objects.width."""
    for found in _objects(values, place.split(".") if place else []):
        yield from (f"{place}.{key}" if place else str(key) for key in found if key not in but and found[key] is not None)


def _objects(found: Cell, path: Sequence[str]) -> Iterator[Mapping[str, Cell]]:
    """The objects at the end of a path; what a list holds is at the list's place."""
    if isinstance(found, list):
        for item in found:
            yield from _objects(item, path)
    elif isinstance(found, Mapping) and path:
        yield from _objects(found.get(path[0]), path[1:])
    elif isinstance(found, Mapping):
        yield found
