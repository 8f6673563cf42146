"""The methods: all of them, compared, a page each, and the parts that fill their slots."""

import re
from collections.abc import Iterator

from docs.pages.lines import cell, inner_lines, prose, table_of
from mmrl.app.config.algorithm import Assembly, changes, costs, needs
from mmrl.app.config.slots import SLOTS, kinds
from mmrl.app.config.slots import place as place_of
from mmrl.app.inspect.show import part_lines
from mmrl.app.inspect.things import things_called
from mmrl.app.plugins.cards import MethodCard, PartCard, cards, evidence, not_now, part_cards
from mmrl.app.plugins.catalog import preset_documents


def algorithms_page() -> Iterator[str]:
    """One line per method to choose from, methods that are one part of a run, and methods that are missing."""
    from mmrl.algorithms.presets import PRESETS

    yield "# Algorithms\n"
    yield (
        'Choose one with `[algorithm] preset = "NAME"` in a config or `algorithm.preset=NAME` on the command line. '
        "`mmrl show NAME` prints a method's paper, when to use it, what it changes, costs and needs, what is missing, and its "
        "parts with every value; the site's page *Methods compared* has a table of them all.\n"
    )
    yield f"\nParts that a config can replace fill these slots: {', '.join(SLOTS)}. `mmrl ls parts` lists them."
    for title, generates in (("Models that write", False), ("Generators of images and videos", True)):
        yield f"\n## {title}\n\n| method | idea |\n|---|---|"
        named = (name for name in cards() if (PRESETS[name].schedule is not None) == generates)
        yield from (f"| `{name}` | {cell(cards()[name].sentence)} |" for name in named)
    yield "\n## With any preset\n\nMethods that are one part of a run.\n"
    yield "| method | in a config | status | its claim |\n|---|---|---|---|"
    for part in part_cards():
        yield f"| {cell(part.method)} | `{part.take}` | {cell(part.status)} | {verdicts(part)} |"
    yield "\nMethods that are chains of stages, such as TON and VerIPO, are recipes (`mmrl recipe ls`)."
    yield "\n## Not implemented\n\n| methods | why |\n|---|---|"
    yield from (f"| {', '.join(methods)} | {cell(why)} |" for why, methods in not_now())


OTHER_WAYS = ("dpo_once", "dpo_in_rounds", "best_of_n")
"""Rows of evidence that are no presets: stages in place of one run."""


def verdicts(one: MethodCard | PartCard) -> str:
    """Ahead, level or behind its twin, for each task made for the method's claim."""
    return ", ".join(f"{found.verdict} ({found.task})" for found in one.evidence) or "not measured"


def comparison_page() -> Iterator[str]:
    """All presets in one table: changes, costs, needs, status and evidence."""
    from mmrl.algorithms.presets import PRESETS

    yield "# Methods compared\n"
    yield (
        "Each method compared with grpo or, for generators, with flow_grpo. The last column compares it with its plain twin on a "
        "small task made for its claim, over three or four seeds (`python -m tests.evidence NAME --seeds 4`): "
        "ahead where all seeds agree that it is "
        "better, behind where all agree that it is worse, level otherwise. Such tasks show that a method has an effect, not that "
        "it helps on your data.\n"
    )
    yield "| method | changes | costs | needs | status | its claim |\n|---|---|---|---|---|---|"
    for name, one in cards().items():
        made = PRESETS[name]
        cells = (changes(made), costs(made), needs(made), one.status, verdicts(one))
        yield f"| [{name}](methods/{name}.md) | {' | '.join(map(cell, cells))} |"
    yield from grpo_or_dpo()


def grpo_or_dpo() -> Iterator[str]:
    """The other ways to learn from a group's scores, at the cost of GRPO."""
    yield (
        "\n## GRPO or DPO\n\nAt equal cost, counted in passes of the network (a row that trains counts three times), each run at "
        "the best of two or three learning rates. Three seeds, in brackets. `dpo_once` trains on pairs of the model as it began, "
        "`dpo_in_rounds` and `best_of_n` (supervised) mine eight times, by [stages](../how_to/stages.md) of the kinds `pairs` "
        "and `filter`.\n"
    )
    yield "| way | task | measured | this way | GRPO |\n|---|---|---|---|---|"
    for name, task in (*((name, "grpo_or_dpo") for name in OTHER_WAYS), ("flow_dpo", "points"), ("flow_sft", "points")):
        for one in evidence().get(name, ()):
            if one.task == task:
                ways = (
                    f"{sum(values) / len(values):.2f} ({', '.join(f'{x:.2f}' for x in values)})"
                    for values in (one.with_it, one.twin)
                )
                yield f"| {name} | {cell(one.claim)} | {cell(one.measured)} | {' | '.join(ways)} |"


def method_page(name: str) -> Iterator[str]:
    """A preset's own words, its card, its costs and needs, and its parts with their formulas."""
    from mmrl.algorithms.presets import PRESETS

    made = PRESETS[name]
    yield f"# {name}\n"
    yield prose(preset_documents()[name])
    yield ""
    yield from (f"- **{word}**: {cell(text)}" for word, text in cards()[name].lines())
    yield from (f"- **{word}**: {cell(facts(made))}" for word, facts in (("costs", costs), ("needs", needs)))
    yield "\n```text"
    yield from (re.sub(r":\d+$", "", line) for line in part_lines(Assembly(name, made, name)))
    yield "```\n\nAll methods: [Algorithms](../algorithms.md)."


def parts_page(slot: str) -> Iterator[str]:
    """Every part that fits a slot, with its settings."""
    yield f"# Parts: {slot}\n\nIn a config: `{place_of(slot)}`.\n"
    for name in sorted(kinds(slot)):
        for thing in things_called(name):
            if thing.kind in (f"a part of {slot}", "a sampler"):
                yield f"\n## {name}\n"
                yield prose(thing.document)
                yield ""
                yield from table_of(thing.settings)


def inner_page() -> Iterator[str]:
    yield "# Parts inside parts\n\nIn a config, dynamics are given as a name and a level, the others as tables."
    yield from inner_lines("a part inside a schedule", "a way to show prompts, inside a part")
