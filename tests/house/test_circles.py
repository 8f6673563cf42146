"""No module of mmrl imports, at the top or inside a function, what imports it; nor does a folder inside any room."""

from collections.abc import Collection, Mapping
from functools import cache

import grimp

from tests.support.each import for_each

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


def folders(graph: Imports, room: str) -> dict[str, set[str]]:
    """Folder or file right inside a room -> those beside it that it imports."""
    inside = {name: name.removeprefix(f"{room}.").partition(".")[0] for name in graph if name.startswith(f"{room}.")}
    found: dict[str, set[str]] = {folder: set() for folder in inside.values()}
    for name, folder in inside.items():
        found[folder] |= {inside[other] for other in graph[name] if other in inside} - {folder}
    return found


def rooms(graph: Imports) -> list[str]:
    """Every package that holds packages, the whole of mmrl included."""
    packages = {name.rpartition(".")[0] for name in graph} - {""}
    return sorted({name.rpartition(".")[0] for name in packages} - {""})


def test_no_circle():
    found = circle(imports())
    assert not found, "a circle of imports: " + " -> ".join(found)


@for_each("room", rooms(imports()))
def test_no_circle_of_folders_inside_a_room(room: str):
    found = circle(folders(imports(), room))
    assert not found, f"a circle of folders in {room}: " + " -> ".join(found)


def test_a_circle_would_be_found():
    assert circle({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}) == ["a", "b", "c", "a"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_a_circle_of_folders_would_be_found():
    graph = {"m.a.x": {"m.b.y"}, "m.b.y": set(), "m.b.z": {"m.a.w"}, "m.a.w": set()}
    assert circle(graph) == []
    assert circle(folders(graph, "m")) == ["a", "b", "a"]
