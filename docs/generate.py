"""Write the reference from the code: `python docs/generate.py` writes the committed pages, `--check` says which are stale.

The other pages exist on the site only, into which `docs/site_hooks.py` puts them.
"""

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from docs.pages.algorithms import algorithms_page, comparison_page, inner_page, method_page, parts_page
from docs.pages.attacks import attacks_page
from docs.pages.commands import commands_page, metrics_page
from docs.pages.config import config_page
from docs.pages.families import families_page
from docs.pages.plug_ins import needs_lines, plug_ins_page, rewards_page
from docs.pages.recipes import recipes_page
from docs.pages.suites import suites_page
from docs.pages.templates import templates_page
from mmrl.app.config.slots import SLOTS
from mmrl.app.plugins.cards import cards

FOLDER = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py: change the code's own words, then run it. -->"
Pages = dict[str, Callable[[], Iterator[str]]]
COMMITTED: Pages = {
    "reference/config.md": config_page,
    "reference/algorithms.md": algorithms_page,
    "reference/rewards.md": rewards_page,
    "reference/commands.md": commands_page,
}
"""For readers without the site."""
ON_THE_SITE: Pages = {
    "reference/methods_compared.md": comparison_page,
    **{f"reference/methods/{name}.md": partial(method_page, name) for name in cards()},
    **{f"reference/parts/{slot}.md": partial(parts_page, slot) for slot in SLOTS},
    "reference/parts/inside_parts.md": inner_page,
    "reference/rewards_in_full.md": lambda: plug_ins_page(
        "rewards", "Rewards in full", "\n".join(needs_lines())
    ),
    "reference/datasets.md": lambda: plug_ins_page(
        "datasets", "Data sets", "In a config `[data] use = \"NAME\"`; other keys are below."
    ),
    "reference/families.md": families_page,
    "reference/metrics.md": metrics_page,
    "reference/recipes.md": recipes_page,
    "reference/templates.md": templates_page,
    "how_to/suites.md": suites_page,
    "attacks.md": attacks_page,
}  # fmt: skip


def page(name: str) -> str:
    """The text of a page."""
    text = "\n".join([NOTE, "", *(COMMITTED | ON_THE_SITE)[name]()])
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def orphans() -> list[Path]:
    """Pages of the reference that are not to be committed, or no longer."""
    found = sorted((FOLDER / "reference").rglob("*.md"))
    return [file for file in found if file.relative_to(FOLDER).as_posix() not in COMMITTED]


def stale() -> list[str]:
    """Committed pages whose file differs from the code, is missing or is left over."""
    files = {name: FOLDER / name for name in COMMITTED}
    found = [name for name, file in files.items() if not file.is_file() or file.read_text(encoding="utf-8") != page(name)]
    return found + [file.relative_to(FOLDER).as_posix() for file in orphans()]


def main() -> None:
    if "--check" in sys.argv:
        sys.exit(f"stale, run python docs/generate.py: {', '.join(found)}" if (found := stale()) else 0)
    for file in orphans():
        file.unlink()
    for name in COMMITTED:
        (FOLDER / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
