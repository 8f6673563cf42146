"""Files that are whole or not there."""

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence, Set
from numbers import Integral, Real
from pathlib import Path
from typing import Protocol

from mmrl.runtime.disk import whole_file
from mmrl.runtime.net.secrets import hide


class HasPath(Protocol):
    """An object that stands for a folder."""

    @property
    def path(self) -> Path: ...


class Below:
    """A file or folder below its owner's `path`: `config_file = Below("config.toml")`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: HasPath, kind: type) -> Path:
        return owner.path / self.name


def replace_text(file: Path, text: str) -> None:
    """Write a file whole or not at all, without keys."""
    replace_bytes(file, hide(text).encode())


def replace_bytes(file: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    with whole_file(file) as fresh, fresh.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def json_text(value: object) -> str:
    """The value as JSON on lines of its own: dataclasses as objects, paths and other things as texts, NaN and infinity null."""
    return json.dumps(plain(value), indent=1)


def plain(value: object) -> object:
    """The value in JSON's types."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, Sequence | Set):
        return [plain(one) for one in value]
    return str(value)
