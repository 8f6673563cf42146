"""Published results to reproduce."""

from collections.abc import Iterator

from docs.pages.lines import cell
from mmrl.lab.recipes.facts import recipes
from mmrl.lab.recipes.pages import card, figures_of, number, small_tasks


def recipes_page() -> Iterator[str]:
    yield "# Recipes\n\nPublished results to reproduce ([how](../how_to/recipes.md)). `?`: no public source gives the value.\n"
    for one in recipes():
        yield f"\n## {one.name}\n\n{cell(one.recipe.title)}. arXiv:{one.recipe.arxiv}; fits {card(one)}.\n"
        yield f"{cell(one.recipe.note)}\n" if one.recipe.note else ""
        yield "| measure | before | paper |\n|---|--:|--:|"
        yield from (f"| {cell(name)} | {number(base)} | {number(paper)} |" for name, base, paper in figures_of(one))
        yield f"\nNumbers: {cell(one.recipe.table)}.\n"
        yield from (f"On a task of letters: {cell(text)}.\n" for text in small_tasks(one))
        yield "| setting | published | here | why |\n|---|---|---|---|"
        yield from (f"| {cell(d.setting)} | {cell(d.published)} | {cell(d.here)} | {cell(d.why)} |" for d in one.deviation)
        yield "\n| file, below the data folder | what | size | licence | from |\n|---|---|---|---|---|"
        for f in one.file:
            yield f"| `{f.below}` | {cell(f.what)} | {cell(f.size)} | {cell(f.licence)} | {cell(f.source)} |"
