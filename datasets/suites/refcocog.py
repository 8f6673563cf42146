"""RefCOCOg: the box of what a long sentence names. Prompts and scores are those of `refcoco`."""

from dataclasses import replace
from functools import partial
from typing import Any

from mmrl import find_suite

REFS = "refs(umd).p"
SIZES = {"val": 4896, "test": 9602}
SAME: Any = find_suite("refcoco")
SUITE = replace(
    SAME,
    name="refcocog",
    measures="boxes of what a sentence names (RefCOCOg)",
    paper="1511.02283",
    files=(replace(SAME.files[0], name=REFS), *SAME.files[1:]),
    read=partial(SAME.read, refs=REFS, sizes=SIZES),
    sizes=SIZES,
)
