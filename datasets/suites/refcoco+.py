"""RefCOCO+: the box of what a sentence names, without words of place. Prompts and scores are those of `refcoco`."""

from dataclasses import replace
from typing import Any

from mmrl import find_suite

SAME: Any = find_suite("refcoco")
SUITE = replace(
    SAME,
    name="refcoco+",
    measures="boxes of what a sentence names (RefCOCO+)",
    sizes={"val": 10758, "testA": 5726, "testB": 4889},
)
