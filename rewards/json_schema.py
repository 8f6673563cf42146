"""Is the answer JSON that fits a schema?

    r = 1 if it is JSON that fits the schema, else 0;   with `items_of`: the share of that list's items that fit, the rest fitting

The answer is the inside of the last answer tag (else the text without its thought), fenced or bare. Understood of JSON Schema:
type, enum, const, properties, required, additionalProperties, items, minItems, maxItems, minimum, maximum, minLength, maxLength,
pattern, anyOf; any other word is an error when the run is built. Parts: json (it is JSON at all), unparsed.

Modality: text
Range: [0, 1]
Source: the format half of Veason-R1's reward, arXiv:2508.11538, is an object with `items_of = "bbox_2d_list"`
Licence: own code Apache-2.0
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmrl import Group, Need, Scored
from mmrl.answers.block import answer_block, completion_text, strip_fence
from mmrl.answers.needs import columns

TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": int,
}
INNER = ("properties", "items", "anyOf", "additionalProperties")
KNOWN = {
    *(*INNER, "type", "enum", "const", "required", "minItems", "maxItems", "minimum", "maximum"),
    *("minLength", "maxLength", "pattern", "title", "description", "$schema"),
}


@dataclass(frozen=True)
class JsonSchema:
    """1 for JSON that fits the schema."""

    schema: Mapping[str, Any] = field(default_factory=dict)
    """The schema that the answer must fit, as a table with the keywords of JSON Schema."""
    column: str = ""
    """The column with each prompt's own schema; a prompt without one gets None."""
    items_of: str = ""
    """A list in the object that is scored by the share of its items that fit, instead of all or nothing."""
    needs = Need("a column with its schema, unless there is one for all", lambda p, r, _: r.schema or columns(r.column)(p, r, _))

    def __post_init__(self) -> None:
        _check(self.schema, "schema")
        if bool(self.schema) == bool(self.column):
            raise ValueError("json_schema needs either a schema or a column that holds one per prompt")

    def __call__(self, group: Group) -> list[float | Scored | None]:
        schema = self.schema or group.prompt.columns.get(self.column)
        if schema is None:
            return [None] * len(group.samples)
        schema = json.loads(schema) if isinstance(schema, str) else schema
        _check(schema, f"the schema of prompt {group.prompt.id!r}")
        return [self._score(completion_text(group.prompt, sample), schema) for sample in group.samples]

    def _score(self, text: str, schema: Mapping[str, Any]) -> Scored:
        try:
            value = json.loads(strip_fence(answer_block(text)))
        except (ValueError, RecursionError):
            return Scored(0.0, {"json": 0.0, "unparsed": 1.0})
        score = self._share(value, schema) if self.items_of else float(_fits(value, schema))
        return Scored(score, {"json": 1.0, "unparsed": 0.0})

    def _share(self, value: Any, schema: Mapping[str, Any]) -> float:
        items = value.get(self.items_of) if isinstance(value, dict) else None
        if not isinstance(items, list) or not items:
            return float(_fits(value, schema))
        inner = schema.get("properties", {}).get(self.items_of, {}).get("items", {})
        good = [item for item in items if _fits(item, inner)]
        return len(good) / len(items) * _fits({**value, self.items_of: good}, schema)


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """True if a JSON value is of the schema's form."""
    types = schema.get("type", list(TYPES))
    if not any(_is(value, name) for name in ([types] if isinstance(types, str) else types)):
        return False
    if ("enum" in schema and value not in schema["enum"]) or ("const" in schema and value != schema["const"]):
        return False
    if "anyOf" in schema and not any(_fits(value, one) for one in schema["anyOf"]):
        return False
    if isinstance(value, dict):
        return _object_fits(value, schema)
    if isinstance(value, list):
        sized = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return sized and all(_fits(item, schema.get("items", {})) for item in value)
    if isinstance(value, str):
        sized = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        return sized and ("pattern" not in schema or re.search(schema["pattern"], value) is not None)
    if _is(value, "number"):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    return True


def _object_fits(value: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    if any(key not in value for key in schema.get("required", ())):
        return False
    for key, item in value.items():
        inner = known.get(key, more)
        if inner is False or (inner is not True and not _fits(item, inner)):
            return False
    return True


def _is(value: Any, name: str) -> bool:
    """True and False are no numbers, and NaN and Infinity, which Python reads, are none either."""
    if isinstance(value, bool) or name == "boolean":
        return isinstance(value, bool) and name == "boolean"
    whole = name == "integer" and isinstance(value, float) and value.is_integer()
    return whole or (isinstance(value, TYPES[name]) and (not isinstance(value, float) or abs(value) < float("inf")))


def _check(schema: Any, where: str) -> None:
    """ValueError for what is no schema, or uses a word that is not understood."""
    if not isinstance(schema, Mapping):
        raise ValueError(f"{where} is {schema!r}: a schema is a table")
    for key, value in schema.items():
        if key not in KNOWN:
            raise ValueError(f"{where}.{key} is not understood: json_schema knows {', '.join(sorted(KNOWN))}")
        if key == "type" and not set([value] if isinstance(value, str) else value) <= set(TYPES):
            raise ValueError(f"{where}.type is {value!r}: it is one of {', '.join(TYPES)}")
        if key not in INNER:
            continue
        named: Any = value if key == "properties" else dict(enumerate(value)) if key == "anyOf" else {"": value}
        for name, one in named.items():
            if not isinstance(one, bool):
                _check(one, f"{where}.{key}.{name}".rstrip("."))
