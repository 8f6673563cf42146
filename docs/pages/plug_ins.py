"""Rewards and data sets."""

from collections.abc import Iterator

from docs.pages.lines import inner_lines, thing_lines
from mmrl.app.config.reward_needs import need_of
from mmrl.app.inspect.things import plug_in
from mmrl.app.plugins.catalog import catalog, details
from mmrl.app.plugins.resolve import load

IN_A_CONFIG = 'In a config `[[reward]] use = "NAME"`; other keys are below. What prompts need is looked at before a model loads:'


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
