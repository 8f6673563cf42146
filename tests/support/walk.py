"""Everything reachable from an object, as paths and fingerprints: to see what moves, whatever it is called."""

import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

OURS = ("mmrl", "tests", "torch.optim", "types")
"""Modules whose objects are looked into."""


def leaves(root: Any) -> dict[str, str]:
    """Path -> fingerprint of all values reachable from `root`, along every way that leads there without a circle."""
    return dict(walk(root, (), {}))


def walk(value: Any, above: tuple[int, ...], known: dict[int, list[tuple[str, str]]]) -> list[tuple[str, str]]:
    fingerprint = simple(value)
    if fingerprint is not None:
        return [("", fingerprint)]
    if id(value) in above:
        return []
    if id(value) not in known:
        inside = [(name, walk(item, (*above, id(value)), known)) for name, item in parts(value)]
        known[id(value)] = [(f".{name}{path}", found) for name, below in inside for path, found in below]
    return known[id(value)]


def simple(value: Any) -> str | None:
    """A fingerprint of what has no parts."""
    if isinstance(value, bool | int | float | str | bytes | type(None)):
        return repr(value)
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {hash(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())}"
    if isinstance(value, np.ndarray):
        return f"{value.shape} {hash(value.tobytes())}"
    if isinstance(value, torch.Generator):
        return str(hash(value.get_state().numpy().tobytes()))
    if isinstance(value, random.Random):
        return str(hash(value.getstate()))
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    return repr(sorted(map(repr, value))) if isinstance(value, set | frozenset) else None


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What is inside, by name; a mapping's order is one of its parts, for a cache forgets in that order."""
    if isinstance(value, Mapping):
        yield "<order>", repr([key if isinstance(key, int | str | bytes | tuple) else "" for key in value])
        for i, (key, item) in enumerate(value.items()):
            yield str(key) if isinstance(key, int | str | tuple) else str(i), item
    elif isinstance(value, list | tuple | deque):
        yield "<length>", len(value)
        for i, item in enumerate(value):
            yield str(i), item
    elif isinstance(value, nn.Module):
        yield from value.state_dict(keep_vars=True).items()
    elif hasattr(value, "__dict__") and not isinstance(value, type) and type(value).__module__.startswith((*OURS, "running")):
        # a dataclass leaves a default in its class until it is changed
        defaults = {f.name: getattr(value, f.name, None) for f in fields(value)} if is_dataclass(value) else {}
        yield from (defaults | vars(value)).items()
