"""What came of every attack when all were carried out last."""

from collections.abc import Iterator

from docs.pages.lines import cell
from tests.attacks.attack import outcomes


def attacks_page() -> Iterator[str]:
    """A row per attack."""
    found = outcomes()
    yield "# Attacks\n\nWhat was tried against mmrl and what came of it, when `make attack` last ran.\n"
    yield "| area | attack | outcome |\n|---|---|---|"
    for area, attacks in found.items():
        yield from (f"| {cell(area)} | {cell(name)} | {cell(outcome)} |" for name, outcome in attacks.items())
    yield f"\n{sum(map(len, found.values()))} attacks."
