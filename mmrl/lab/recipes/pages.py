"""`mmrl recipe ls` and `show` as lines of text; loads no torch."""

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from mmrl.app.plugins.cards import evidence
from mmrl.lab.recipes.facts import UNKNOWN, NeededFile, Published, Recipe

WIDTH = 118


def listing(found: Sequence[Recipe]) -> list[str]:
    """A line per recipe: its name, what is reproduced, on which card, and how many files are missing here."""
    width = max((len(one.name) for one in found), default=0)
    return [f"{one.name:<{width}}  {card(one):>10}  {state(one):<16}  {one.recipe.title}" for one in found]


def card(recipe: Recipe) -> str:
    count = recipe.recipe.processes
    return recipe.recipe.card if count == 1 else f"{count} x {recipe.recipe.card}"


def state(recipe: Recipe) -> str:
    """`3 files missing`, or `ready`."""
    count = len(recipe.missing)
    return "ready" if not count else f"{count} file{'s' if count > 1 else ''} missing"


def description(recipe: Recipe) -> Iterator[str]:
    """Everything about a recipe: its run, deviations, numbers to compare with, and the files that are missing here."""
    head = recipe.recipe
    yield f"{recipe.name}: {head.title}"
    yield f"paper: arXiv:{head.arxiv}"
    yield from paragraph(f"numbers: {head.table}")
    yield f"card: {card(recipe)} (mmrl plan {config_name(recipe)} --card {head.card})"
    yield from paragraph(head.note) if head.note else ()
    yield f"\nrun, {config_name(recipe)}:\n"
    yield textwrap.indent(recipe.config.read_text(encoding="utf-8").rstrip(), "    ")
    yield "\ndeviations from what was published:\n"
    for one in recipe.deviation:
        said = "no public source" if one.published == UNKNOWN else f"published: {one.published}"
        yield from paragraph(f"{one.setting}, {said}; here: {one.here}. {one.why}", "  - ")
    yield "" if recipe.deviation else "  none"
    yield "numbers to compare with:\n"
    yield from figures(recipe)
    for text in small_tasks(recipe):
        yield ""
        yield from paragraph(f"on a task of letters: {text}")
    yield "\nfiles:\n"
    yield from files(recipe.file)


def small_tasks(recipe: Recipe) -> list[str]:
    """How its stages did against the same without what they add, on tasks made for them (`python -m tests.evidence`)."""
    return [one.text for one in evidence().get(recipe.name, ())]


def config_name(recipe: Recipe) -> str:
    """How `mmrl train` calls the run."""
    return f"recipes/{recipe.name}"


def figures(recipe: Recipe) -> Iterator[str]:
    """The paper's numbers as lines."""
    rows = figures_of(recipe)
    width = max(len(name) for name, _, _ in rows)
    yield f"  {'':<{width}}  {'before':>8}  {'paper':>8}"
    for name, base, paper in rows:
        yield f"  {name:<{width}}  {number(base):>8}  {number(paper):>8}"


def figures_of(recipe: Recipe) -> list[tuple[str, Published, Published]]:
    """Every figure's name, and the paper's numbers before training and after it: `("GenEval, overall", 0.63, 0.95)`."""
    rows: list[tuple[str, Published, Published]] = [
        (f"{one.name}, {figure.name}", figure.base, figure.paper) for one in recipe.measure for figure in one.figure
    ]
    return rows if (total := recipe.total) is None else [*rows, (total.name, total.base, total.paper)]


def number(value: Published) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def files(needed: Sequence[NeededFile]) -> Iterator[str]:
    """Each file with where it is from; of those that are not here also size, licence and how to come by them."""
    for one in needed:
        if Path(one.path).exists():
            yield f"  {one.path}: here"
            continue
        yield f"  {one.path}: MISSING"
        yield from paragraph(f"{one.what}; size: {one.size}; licence: {one.licence}; from {one.source}", "      ")
        yield from [f"      {one.command}"] if one.command.startswith("mmrl ") else paragraph(one.command, "      ")


def missing_files(recipe: Recipe) -> str:
    """The sentence for a run whose files are not here: the exact files, sizes, licences and the commands that make them."""
    missing = recipe.missing
    lines = "\n".join(files(missing))
    return (
        f"recipe {recipe.name}: {len(missing)} of its {len(recipe.file)} files are missing in {Path.cwd()}:\n{lines}\nput them "
        f"there, or try the way with drawn data: mmrl recipe run {recipe.name} --scale tiny"
    )


def paragraph(text: str, before: str = "") -> list[str]:
    """A text in lines; those after the first stand below its first word."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=before, subsequent_indent=" " * len(before), break_long_words=False, break_on_hyphens=False
    )
