"""No module of mmrl imports, at the top or inside a function, what imports it; and few rooms of the app import each other."""

from collections.abc import Callable, Collection, Mapping
from functools import cache

import grimp

MOST_PAIRS = 30
Imports = Mapping[str, Collection[str]]


@cache
def imports() -> dict[str, frozenset[str]]:
    """Module -> what it imports of mmrl, inside functions too; what stands under TYPE_CHECKING is left out."""
    graph = grimp.build_graph("mmrl", exclude_type_checking_imports=True, cache_dir=None)
    return {name: frozenset(graph.find_modules_directly_imported_by(name)) for name in graph.modules}


def circle(graph: Imports) -> list[str]:
    """One circle of imports, its first module again at the end; empty where there is none."""
    left = {name: set(below) for name, below in graph.items()}
    while done := {name for name, below in left.items() if not below & left.keys()}:
        left = {name: below for name, below in left.items() if name not in done}
    if not left:
        return []
    path = [min(left)]
    while path[-1] not in path[:-1]:
        path.append(min(left[path[-1]] & left.keys()))
    return path[path.index(path[-1]) :]


def pairs(graph: Imports, room: Callable[[str], str | None]) -> set[tuple[str, str]]:
    """(room, other room that it imports)."""
    rooms = {(room(name), room(other)) for name, below in graph.items() for other in below}
    return {(one, other) for one, other in rooms if one is not None and other is not None and one != other}


def room_of_the_app(module: str) -> str | None:
    """The folder of mmrl/app, or the file beside the folders, that a module is in."""
    words = module.split(".")
    return words[2] if words[:2] == ["mmrl", "app"] and len(words) > 2 else None


def test_no_circle():
    found = circle(imports())
    assert not found, "a circle of imports: " + " -> ".join(found)


def test_few_rooms_of_the_app_import_each_other():
    found = sorted(pairs(imports(), room_of_the_app))
    print(f"{len(found)} pairs of rooms of mmrl/app")  # noqa: T201 - the number is what the test is for
    assert len(found) <= MOST_PAIRS, f"{len(found)} pairs, at most {MOST_PAIRS}: {found}"


def test_a_circle_would_be_found():
    assert circle({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}) == ["a", "b", "c", "a"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
