"""Vectors computed by the official code of methods, and the registry of what checks them.

A file is {meta, vectors: {key: {kind, origin, params, inputs, outputs, note, tolerance}}}; NaN and infinities are strings.
A module check_*.py registers one function per key:

    @check("verl_kl_penalty")
    def kl_penalty(inputs: Any, outputs: Any) -> None: ...

or of several keys, which `each` spells out of their beginning and their ends. A function takes the fields of Vector that it
names, or with `vector` all of it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

NOT_FINITE = {"NaN": "nan", "nan": "nan", "Infinity": "inf", "inf": "inf", "-Infinity": "-inf", "-inf": "-inf"}


@dataclass(frozen=True)
class Vector:
    """Inputs and outputs of one piece of official code; numbers decoded, None kept."""

    params: Mapping[str, Any]
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    note: str = ""
    tolerance: float = 1e-9
    """Absolute and relative, as the file gives it."""


CHECKS: dict[str, Callable[[Vector], None]] = {}


def check(*keys: str) -> Callable[[Callable[..., None]], Callable[[Vector], None]]:
    """Register the function that checks the vectors of these keys; it is given the fields that its arguments name."""

    def register(function: Callable[..., None]) -> Callable[[Vector], None]:
        wanted = [name for name, one in signature(function).parameters.items() if one.default is one.empty]

        def run(vector: Vector) -> None:
            function(*(vector if name == "vector" else getattr(vector, name) for name in wanted))

        for key in keys:
            assert key not in CHECKS, f"two checks for the vector {key}"
            CHECKS[key] = run
        return run

    return register


def each(prefix: str, *endings: Any) -> list[str]:
    return [f"{prefix}{ending}" for ending in endings]


@cache
def read(file: Path) -> dict[str, Vector]:
    """The vectors of a file by key."""
    vectors = json.loads(file.read_text(encoding="utf-8"))["vectors"]
    for vector in vectors.values():
        if "same_as" in vector["inputs"]:
            vector["inputs"] = vectors[vector["inputs"]["same_as"]]["inputs"]
    return {
        key: Vector(
            *(decoded(vector.get(name, {})) for name in ("params", "inputs", "outputs")),
            note=vector.get("note", ""),
            tolerance=vector.get("tolerance", 1e-9),
        )
        for key, vector in vectors.items()
    }


def decoded(x: Any) -> Any:
    if isinstance(x, str) and x in NOT_FINITE:
        return float(NOT_FINITE[x])
    if isinstance(x, list):
        return [decoded(item) for item in x]
    if isinstance(x, dict):
        return {name: decoded(item) for name, item in x.items()}
    return x


def tensor(x: Any) -> Tensor:
    """Numbers in float64."""
    return torch.tensor(x, dtype=torch.float64)


def close(actual: Any, expected: Any, tolerance: float = 1e-9, what: str = "") -> None:
    """Assert that numbers or tensors agree, absolutely and relatively; `what` names them in the message."""
    actual, expected = (x if isinstance(x, Tensor) else tensor(x) for x in (actual, expected))
    torch.testing.assert_close(
        actual.detach(), expected, atol=tolerance, rtol=tolerance, check_dtype=False, msg=lambda text: f"{what}: {text}"
    )
