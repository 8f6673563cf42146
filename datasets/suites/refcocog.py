"""RefCOCOg: the box of what a long sentence names. Prompts and scores are those of `refcoco`."""

from dataclasses import replace
from typing import Any

from mmrl import find_suite

SAME: Any = find_suite("refcoco")
SUITE = replace(
    SAME,
    name="refcocog",
    measures="boxes of what a sentence names (RefCOCOg)",
    paper="1511.02283",
    files=(replace(SAME.files[0], name="refs(umd).p"), *SAME.files[1:]),
    sizes={"val": 4896, "test": 9602},
)
