"""The models that mmrl can train."""

import inspect
from collections.abc import Iterator

import transformers

from docs.pages.lines import cell, table_of
from mmrl.app.inspect.settings import facts_of
from mmrl.app.inspect.things import classes, public_weights, things_called
from mmrl.lab.tiny.text.vlms import FAMILIES as TINY
from mmrl.policies.flow.families.base import FlowFamily
from mmrl.policies.text.families import Family
from mmrl.policies.text.families.types import all_types

PUBLISHED = ("tasks", "licence", "licence_read", "tested")
"""Facts of a family that the table of all families shows."""


def families_page() -> Iterator[str]:
    """A table to choose from, the facts that all families have, then what is each one's own."""
    yield "# Families\n\nModels that mmrl can train, by the name in their own files.\n"
    yield "| family | tasks | licence of public weights | tested |\n|---|---|---|---|"
    for name, one in public_weights().items():
        yield f"| `{name}` | {', '.join(one.tasks)} | {cell(one.licence_and_note)} | {cell(one.tested)} |"
    for base, words in ((FlowFamily, "draw"), (Family, "write")):
        yield from facts_of_families(base, words)
    yield f"\n## Types that see or hear of transformers {transformers.__version__}\n"
    yield "Read from classes and default configs, as `mmrl ls families --all` does; tests try those in bold on a tiny model.\n"
    yield "| type | |\n|---|---|"
    for one in all_types():
        name = f"**{one.name}**" if one.name in TINY else one.name
        yield f"| {name} | {cell(one.summary)} |"


def facts_of_families(base: type, words: str) -> Iterator[str]:
    """The facts of families of this base, then a table per family of those that differ from the base's or are its own."""
    common = {one.name: one for one in facts_of(base) if one.name not in PUBLISHED}
    yield f"\n## Models that {words}: facts of a family\n\nNo config sets them. Below are those in which a family differs.\n"
    yield from table_of(list(common.values()))
    for listed in classes("families"):
        for thing in things_called(listed.name):
            if not (inspect.isclass(thing.found) and issubclass(thing.found, base)):
                continue
            different = [one for one in thing.settings if one.name not in PUBLISHED and one != common.get(one.name)]
            yield f"\n### {listed.name}\n"
            yield "| fact | here |\n|---|---|" if different else "As above."
            for one in different:
                yield f"| `{one.name}` | `{cell(one.default)}`{'' if one.name in common else ': ' + cell(one.meaning)} |"
