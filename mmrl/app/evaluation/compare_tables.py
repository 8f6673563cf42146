"""A comparison on a terminal, where no number is broken at 80 columns, or as TSV with every digit into a pipe."""

import math
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mmrl.app.evaluation.compare import Comparison, MetricRow
from mmrl.app.report.figures import LEAST_PROMPTS, PairedChange
from mmrl.app.report.tables import table, write_tsv
from mmrl.app.report.words import number, percent, signed

WIDE = 120
"""Columns of a terminal from which on first and best values are shown too."""
MOST_OF_A_SETTING = 200
"""Characters of a value that are shown."""
SAME = "The settings are the same."


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Notices, settings, figures of the same prompts, and training figures."""
    if console.is_terminal:
        print_tables(comparison, console)
        return
    for kind, header, rows in sections(comparison):
        write_tsv(console, ("table", *header), [(kind, *row) for row in rows])


def sections(comparison: Comparison) -> Iterable[tuple[str, Sequence[str], list[tuple[object, ...]]]]:
    """The tables of the TSV: name, header, rows; those that have no row are left out."""
    held = [row_of_figure(one) for one in comparison.differences]
    ways = [(way.name, *row_of_figure(one)) for way in comparison.also for one in way.differences]
    ends = ("difference", "low", "high", "prompts", "higher", "lower", "sign_p", "unparsed_a", "unparsed_b")
    runs: list[tuple[object, ...]] = [(row.name, *map(finite, (*row.first, *row.last, *row.best))) for row in comparison.training]
    notices = [*comparison.notices, *([] if comparison.settings else [SAME])]
    found: list[tuple[str, Sequence[str], list[tuple[object, ...]]]] = [
        ("names", ("a", "b"), [comparison.names]),
        ("notice", ("text",), [(notice,) for notice in notices]),
        ("setting", ("setting", "a", "b"), [(*row,) for row in comparison.settings]),
        ("held_out", ("figure", "a", "b", *ends), held),
        ("also", ("way", "figure", "a", "b", *ends), ways),
        ("training", ("metric", "first_a", "first_b", "last_a", "last_b", "best_a", "best_b"), runs),
    ]
    return [one for one in found if one[2]]


def row_of_figure(one: PairedChange) -> tuple[object, ...]:
    ends = map(finite, (one.low, one.high))
    signs = one.num_prompts, one.higher, one.lower, finite(one.sign_p)
    return (one.name, one.before, one.after, one.difference, *ends, *signs, *map(finite, one.unread))


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def print_tables(comparison: Comparison, console: Console) -> None:
    a, b = (escape(name) for name in comparison.names)
    console.print(f"a is {a}\nb is {b}", soft_wrap=True)
    for notice in comparison.notices:
        console.print(escape(notice), style="yellow")
    if settings := comparison.settings:
        cut = [[text if len(text) <= MOST_OF_A_SETTING else f"{text[:MOST_OF_A_SETTING]}..." for text in row] for row in settings]
        console.print(table(dict.fromkeys(("setting", "a", "b")), (), cut, "Settings that differ"))
    else:
        console.print(SAME)
    if comparison.differences:
        title = f"Held out: the {comparison.num_shared} prompts that both evaluated"
        console.print(figure_table(comparison.differences, title))
        console.print(sign_words(comparison.differences), markup=False)
    for way in comparison.also:
        title = f"Held out, answered as {way.name}: the {way.num_shared} prompts that both answered so"
        console.print(figure_table(way.differences, escape(title)))
        for line in unread_words(way.differences):
            console.print(line, markup=False)
    wide = console.width >= WIDE
    if wide and any(row.first != row.last for row in comparison.held_out):
        console.print(metric_table("Held out, over the evaluations", comparison.held_out, wide))
    if comparison.training:
        console.print(metric_table("Training", comparison.training, wide))


def figure_table(changes: Sequence[PairedChange], title: str) -> Table:
    """Seven columns that fit 80: the numbers are never broken, long names of figures are."""
    rows: list[Sequence[str]] = []
    for one in changes:
        interval = f"{signed(one.low)} to {signed(one.high)}" if one.has_interval else "none"
        chance = f"{one.sign_p:.2g}" if math.isfinite(one.sign_p) else ""
        ends = number(one.before), number(one.after), signed(one.difference)
        rows.append((one.name, *ends, interval, f"{one.higher}:{one.lower}", chance))
    return table({"figure": 18}, ("a", "b", "b - a", "95 % interval", "higher:lower", "p"), rows, title)


def sign_words(changes: Sequence[PairedChange]) -> str:
    """How to read the table, and how much could not be read."""
    words = ["higher:lower counts the prompts where b is above and below a; p is the sign test's (the rest are the same)."]
    few = min(one.num_prompts for one in changes)
    if few < LEAST_PROMPTS:
        words.append(f"No interval and no p where fewer than {LEAST_PROMPTS} prompts have the figure (here {few}).")
    return "\n".join([*words, *unread_words(changes)])


def unread_words(changes: Sequence[PairedChange]) -> list[str]:
    """A line for each of the first figures for which answers could not be read."""
    unread = [one for one in changes if max(filter(math.isfinite, one.unread), default=0.0) > 0]
    return [f"unparsed for {one.name}: {percent(one.unread[0])} of a, {percent(one.unread[1])} of b" for one in unread[:3]]


def metric_table(title: str, rows: Sequence[MetricRow], wide: bool) -> Table:
    """Last values and their difference; on a wide terminal first and best ones too."""
    names, shown = ("first a", "first b", "a", "b", "b - a", "best a", "best b"), slice(None) if wide else slice(2, 5)
    values = [(*map(number, (*row.first, *row.last)), signed(row.difference), *map(number, row.best)) for row in rows]
    return table({"metric": 34}, names[shown], [(row.name, *own[shown]) for row, own in zip(rows, values, strict=True)], title)
