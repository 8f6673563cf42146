"""Checks of what a table may say: its keys, and numbers where numbers belong."""

from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from mmrl.app.toml.did_you_mean import did_you_mean, edits, nearest
from mmrl.app.toml.tables import KeyPath, Table
from mmrl.core.ranges import fault_of

NUMBERS = frozenset({int, float})


def check_keys(values: Mapping[str, object], known: Sequence[str], path: KeyPath, table: Table) -> None:
    """Refuse keys that nothing knows; of several the likeliest slip is named.

    Raises:
        ValueError: naming place, key and what was probably meant.
    """
    unknown = [key for key in values if key not in known]
    if unknown:
        slips = unknown if len(unknown) > 1 else []
        key = min(slips, key=lambda key: min((edits(key, name) for name in known), default=0), default=unknown[0])
        raise ValueError(f"{table.at((*path, key))} is unknown: {did_you_mean(key, known)}")


def check_slip(values: Mapping[str, object], wanted: str, path: KeyPath, table: Table) -> None:
    """Where the word that says what a table is about is missing, refuse the key that was probably meant to be it.

    Raises:
        ValueError: a key is close to `wanted`, which is missing.
    """
    close = [key for key in values if nearest(key, [wanted])] if wanted not in values else []
    if close:
        key = min(close, key=lambda key: edits(key, wanted))
        raise ValueError(f"{table.at((*path, key))} is unknown: {did_you_mean(key, [wanted])}")


def check_scalar(kind: object, value: str | bool | int, path: KeyPath, table: Table) -> None:
    """Python takes True for 1 and pydantic takes "3" for 3: neither is what was meant."""
    allowed, words = frozenset(leaf_types(kind)), list(words_in(kind))
    if type(value) in allowed or not allowed or (isinstance(value, str) and value in words):
        return
    if isinstance(value, str | bool) and allowed <= NUMBERS:
        said = "".join(f" or {word!r}" for word in words)
        raise ValueError(f"{table.at(path)} is {value!r}: input should be a number{said}")
    if allowed == {bool}:
        raise ValueError(f"{table.at(path)} is {value!r}: input should be true or false")


def check_range(kind: object, value: object, path: KeyPath, table: Table) -> None:
    """Refuse numbers that break the range of their type.

    Raises:
        ValueError: naming place, value and range.
    """
    fault = fault_of(kind, value)
    if fault:
        raise ValueError(f"{table.at(path)} is {value!r}: {fault}")


def leaf_types(kind: object) -> Iterator[object]:
    """int, float, str, ... of a type that is one of them or a union, words apart; anything else stands for itself."""
    if get_origin(kind) is Annotated:
        yield from leaf_types(get_args(kind)[0])
    elif get_origin(kind) is Literal:
        return
    elif get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from leaf_types(one)
    elif kind is not NoneType:
        yield kind


def words_in(kind: object) -> Iterator[object]:
    """The words that a type names, alone or in a union."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    elif get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from words_in(one)
