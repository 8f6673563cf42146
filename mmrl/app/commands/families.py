"""`mmrl ls families`: one table of the models that train, their tasks, the licence of their weights, and what was tested."""

import textwrap
from collections.abc import Iterator
from itertools import zip_longest

from mmrl.policies.shared.published import Published

WIDTHS = (25, 15, 17, 17)
"""Characters of the columns; two stand between them."""
HEAD = ("family", "tasks", "licence of weights", "tested on tiny models")
KINDS = {"flow": "generators", "text": "models that write"}
LAST = "A model's own card counts for its licence."


def published() -> dict[str, dict[str, Published]]:
    """Kind of policy -> family -> the facts about its public weights."""
    from mmrl.policies.flow.families.known import FAMILIES
    from mmrl.policies.text.families.published import PUBLISHED

    return {"flow": {name: cls.published() for name, cls in sorted(FAMILIES.items())}, "text": dict(PUBLISHED)}


def table() -> Iterator[str]:
    """The lines, none wider than a terminal of 80 columns."""
    yield from row(HEAD)
    yield from row(tuple("-" * width for width in WIDTHS))
    for kind, families in published().items():
        yield f"{KINDS[kind]}"
        for name, facts in families.items():
            yield from row((name, ", ".join(facts.tasks), facts.licence_and_note, facts.tested))
            yield ""
    yield LAST


def row(cells: tuple[str, ...]) -> Iterator[str]:
    """A row whose cells go on below each other."""
    wrapped = [textwrap.wrap(cell, width) for cell, width in zip(cells, WIDTHS, strict=True)]
    for parts in zip_longest(*wrapped, fillvalue=""):
        yield "  ".join(f"{part:<{width}}" for part, width in zip(parts, WIDTHS, strict=True)).rstrip()
