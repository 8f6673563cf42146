"""Rewards and data sets."""

from collections.abc import Iterator

from docs.pages.lines import cell, inner_lines, thing_lines
from mmrl.app.config.reward_needs import need_of
from mmrl.app.inspect.things import plug_in
from mmrl.app.plugins.catalog import catalog, details
from mmrl.app.plugins.resolve import load

FACTS = ("Modality", "Needs", "Range")
IN_A_CONFIG = 'In a config `[[reward]] use = "NAME"`; other keys are below. What prompts need is looked at before a model loads:'


def rewards_page() -> Iterator[str]:
    """One line per reward to choose from."""
    yield "# Rewards\n"
    yield (
        'In a config `[[reward]] use = "NAME"`, on the command line `--reward NAME=WEIGHT`. `mmrl show NAME` prints the formula, '
        "every setting, the source and the licences, as does the site's page *Rewards in full*. "
        "[Your own](../tutorials/own_reward.md) is a function.\n"
    )
    yield "| reward | asks | scores | needs | range |\n|---|---|---|---|---|"
    for listed in catalog("rewards"):
        facts = details(listed.file)
        cells = (listed.summary, *(facts.get(name, "") for name in FACTS))
        yield f"| `{listed.name}` | {' | '.join(map(cell, cells))} |"


def plug_ins_page(kind: str, title: str, words: str) -> Iterator[str]:
    yield f"# {title}\n\n{words}\n"
    for listed in catalog(kind):
        yield from thing_lines(plug_in(listed.name, kind), details(listed.file))
    yield from inner_lines("a table inside a data set" if kind == "datasets" else "")


def needs_lines() -> Iterator[str]:
    """What each prompt must have, in a table."""
    yield from (IN_A_CONFIG, "", "| reward | each prompt needs | samples of a prompt |", "|---|---|---|")
    for listed in catalog("rewards"):
        need = need_of(load(listed.name, "rewards"))
        if need is not None and (need.prompts or need.samples > 1):
            alone = f" (of one: {need.alone})" if need.alone else ""
            yield f"| {listed.name} | {need.prompts or 'nothing'} | {need.samples}{alone} |"
    yield "| all others | nothing | 1 |"
