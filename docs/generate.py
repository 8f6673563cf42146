"""Write the reference pages from the code: `python docs/generate.py` writes, `--check` says which pages are stale."""

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from docs.pages.algorithms import algorithms_page, comparison_page, inner_page, method_page, parts_page
from docs.pages.commands import commands_page, metrics_page
from docs.pages.config import config_page
from docs.pages.families import families_page
from docs.pages.plug_ins import IN_A_CONFIG, plug_ins_page
from docs.pages.recipes import recipes_page
from docs.pages.suites import suites_page
from docs.pages.templates import templates_page
from mmrl.app.config.reward_needs import needs_table
from mmrl.app.config.slots import SLOTS
from mmrl.app.plugins.cards import cards

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py: change the code's own words, then run it. -->"
PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "config.md": config_page,
    "algorithms.md": algorithms_page,
    "methods_compared.md": comparison_page,
    **{f"methods/{name}.md": partial(method_page, name) for name in cards()},
    **{f"parts/{slot}.md": partial(parts_page, slot) for slot in SLOTS},
    "parts/inside_parts.md": inner_page,
    "rewards.md": lambda: plug_ins_page("rewards", "Rewards", "\n".join([IN_A_CONFIG, "", *needs_table()])),
    "datasets.md": lambda: plug_ins_page("datasets", "Data sets", "In a config `[data] use = \"NAME\"`; other keys are below."),
    "families.md": families_page,
    "metrics.md": metrics_page,
    "recipes.md": recipes_page,
    "commands.md": commands_page,
    "templates.md": templates_page,
    "../how_to/suites.md": suites_page,
}  # fmt: skip


def page(name: str) -> str:
    text = "\n".join([NOTE, "", *PAGES[name]()])
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def orphans() -> list[Path]:
    """Files of pages that are no longer written."""
    return [file for file in FOLDER.rglob("*.md") if file.relative_to(FOLDER).as_posix() not in PAGES]


def stale() -> list[str]:
    """Pages whose file differs from the code, is missing or is left over."""
    files = {name: FOLDER / name for name in PAGES}
    found = [name for name, file in files.items() if not file.is_file() or file.read_text(encoding="utf-8") != page(name)]
    return found + [file.relative_to(FOLDER).as_posix() for file in orphans()]


def main() -> None:
    if "--check" in sys.argv:
        sys.exit(f"stale, run python docs/generate.py: {', '.join(found)}" if (found := stale()) else 0)
    for file in orphans():
        file.unlink()
    for name in PAGES:
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
