"""`mmrl ls families`: the models that train, their tasks, the licence of their weights, and what was tested.

`--all`: every image-text type of the installed transformers, and whether it can be trained.
"""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from string import ascii_uppercase

from mmrl.policies.shared.published import NOTES, Published

WIDTHS = (34, 13, 21, 6)
"""Characters of the columns; two stand between them."""
HEAD = ("family", "tasks", "licence of weights", "tested")
MARKS = {"makers": "", "others": " *", "nowhere": " **"}
"""Where a licence was read -> the mark behind it; explained below the table."""


def public_weights() -> dict[str, Published]:
    """Family -> the facts about its public weights: models that draw, then models that write."""
    from mmrl.policies.codes.janus import PUBLISHED as BY_TOKENS
    from mmrl.policies.flow.families.known import FAMILIES
    from mmrl.policies.text.families.published import PUBLISHED

    drawing = {name: Published(cls.tasks, cls.licence, cls.licence_read, cls.tested) for name, cls in sorted(FAMILIES.items())}
    return {**drawing, **BY_TOKENS, **PUBLISHED}


def table() -> Iterator[str]:
    """The lines, none wider than a terminal of 80 columns; equal tests share a letter."""
    facts = public_weights()
    letters = dict(zip(dict.fromkeys(one.tested for one in facts.values()), ascii_uppercase, strict=False))
    yield from row(HEAD)
    yield from row(["-" * width for width in WIDTHS])
    for name, one in facts.items():
        yield from row([name, ", ".join(one.tasks), one.licence + MARKS[one.read], letters[one.tested]])
    yield ""
    yield "tested on tiny models of the real classes"
    for tested, letter in letters.items():
        yield from textwrap.wrap(tested, 80, initial_indent=f"  {letter}  ", subsequent_indent=" " * 5)
    yield "licences (a model's own card counts)"
    yield from (f"  {MARKS[read].strip():<2} {note}" for read, note in NOTES.items() if note)


def type_lines() -> Iterator[str]:
    """Every image-text type of the installed transformers, a mark at those that tests try, and yes or no with its reason."""
    import transformers

    from mmrl.lab.tiny.text.vlms import FAMILIES
    from mmrl.policies.text.families.types import all_types

    found = list(all_types())
    count = sum(one.refusal is None for one in found)
    yield f"image-text types of transformers {transformers.__version__}: {count} of {len(found)}"
    yield "  *  tried on a tiny model of the real class"
    yield ""
    for one in found:
        mark = "*" if one.name in FAMILIES else " "
        yield from textwrap.wrap(
            f"{mark} {one.name:<22} {one.summary}", 80, initial_indent="", subsequent_indent=" " * 25, drop_whitespace=True
        )


def row(cells: Sequence[str]) -> Iterator[str]:
    """A row whose cells go on below each other."""
    wrapped = [textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(cells, WIDTHS, strict=True)]
    for parts in zip_longest(*wrapped, fillvalue=""):
        yield "  ".join(f"{part:<{width}}" for part, width in zip(parts, WIDTHS, strict=True)).rstrip()
