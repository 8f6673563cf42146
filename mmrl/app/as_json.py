"""The one way in which commands write JSON: what JSON lacks is null, and everything is ASCII, so no terminal is written to."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence, Set
from numbers import Integral, Real


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
