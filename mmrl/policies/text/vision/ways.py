"""Which parts of a model each kind of media passes, by its own code: processes that spread weights must go the same way."""

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from mmrl.core.samples import KINDS
from mmrl.policies.text.families import Family


def ways_apart(core: nn.Module, family: Family) -> dict[str, str]:
    """Kind -> the parts that its media pass and pictures do not, or only pictures; a kind that passes the same has no entry.

    Where FSDP or ZeRO-3 spreads weights, a process that has none of a kind looks at a picture in its place, and gathers with the
    others only what it passes. Choices inside of a part are not seen.
    """
    # a kind without tensors of its own comes as pictures
    kinds = [kind for kind, _ in family.own_keys if kind in family.sees] if "image" in family.sees else family.sees
    pictures, found = parts_of(core, "image"), dict[str, str]()
    for kind in kinds:
        parts = parts_of(core, kind)
        if parts is None or parts != pictures:
            found[kind] = ", ".join(sorted((parts or frozenset()) ^ (pictures or frozenset()))) or "which it does not name"
    return found


def words_about(place: str, kind: str, parts: str) -> str:
    """The sentence about media of a kind that goes another way, where weights are spread."""
    return (
        f"{place} has a {KINDS[kind].noun}, which passes other parts of the model than pictures ({parts}), and FSDP or ZeRO-3 "
        "spreads the weights: start with configs/accelerate/ddp.yaml"
    )


def parts_of(core: nn.Module, kind: str) -> frozenset[str] | None:
    """The model's own modules with weights that `get_KIND_features` uses, itself or by methods beside it; None: it has none."""
    getter = getattr(type(core), f"get_{kind}_features", None)
    if getter is None:
        return None
    asked: list[Any] = [inspect.unwrap(getter)]
    known, found = {f"get_{kind}_features", "forward"}, set[str]()
    while asked:
        method = asked.pop()
        for name in names_in(method.__code__):
            if name in known:
                continue
            known.add(name)
            value, written = getattr(core, name, None), getattr(type(core), name, None)
            beside = inspect.unwrap(written) if callable(written) else None
            if isinstance(value, nn.Module):
                found |= {name} if any(True for _ in value.parameters()) else set()
            elif isinstance(beside, FunctionType) and beside.__module__ == method.__module__:
                asked.append(beside)
    return frozenset(found)


def names_in(code: CodeType) -> Iterator[str]:
    """The names that a function and those inside it read."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names_in(inner)
