"""Rewards and data sets."""

from collections.abc import Iterator

from docs.pages.lines import inner_lines, thing_lines
from mmrl.app.inspect.things import plug_in
from mmrl.app.plugins.catalog import catalog, details

IN_A_CONFIG = 'In a config `[[reward]] use = "NAME"`; other keys are below. What prompts need is looked at before a model loads:'


def plug_ins_page(kind: str, title: str, words: str) -> Iterator[str]:
    yield f"# {title}\n\n{words}\n"
    for listed in catalog(kind):
        yield from thing_lines(plug_in(listed.name, kind), details(listed.file))
    yield from inner_lines("a table inside a data set" if kind == "datasets" else "")
