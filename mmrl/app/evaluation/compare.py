"""Two runs or evaluations side by side: settings that differ, figures of the same held-out prompts, curves over each other."""

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mmrl.app.evaluation.tables import suite_figures
from mmrl.app.files import replace_text
from mmrl.app.plugins.resolve import SUITES, listing
from mmrl.app.plugins.suites import find_suite
from mmrl.app.report.charts import Chart, Series, line_chart
from mmrl.app.report.data import EVAL, RunData, column, ends, load, read_rows
from mmrl.app.report.figures import LEAST_PROMPTS, PairedChange, SampleFigure, figures, paired_changes
from mmrl.app.report.page import MADE, NUM_PAIRS, Example, Pair, environment, thumbnail
from mmrl.app.report.rows import SampleLine, Task, by_task, mean
from mmrl.app.report.words import number, percent, signed, table, write_tsv
from mmrl.app.run.evaluation_folder import EvaluationDir, prediction_lines
from mmrl.app.run.folder import Line, RunDir, also_split
from mmrl.app.run.trackers import flat, is_reward
from mmrl.app.toml.tables import Values, value_at
from mmrl.data.suites.suite import Suite

Curve = tuple[list[float], list[float]]
"""Steps and values."""


@dataclass(frozen=True)
class Side:
    """One of the two."""

    path: Path
    config: Values
    last: Mapping[Task, list[SampleLine]]
    """The answers that are compared: of a run those of its last evaluation."""
    also: Mapping[str, Mapping[Task, list[SampleLine]]] = field(default_factory=dict[str, Mapping[Task, list[SampleLine]]])
    """The same of every further way to answer (`[[evaluation.also]]`), by its name."""
    notices: Sequence[str] = ()
    run: RunData | None = None
    """None: an evaluation, which has no curves."""
    train: Sequence[Line] = field(default_factory=list[Line])

    @property
    def suite(self) -> Suite | None:
        """The published test set that was answered, by its name; None: other prompts, a run's own, or a suite by its path.

        A path in the files of somebody's evaluation is not run.
        """
        name = value_at(self.config, "data", "suite") if self.run is None else None
        return find_suite(name) if name in [listed.name for listed in listing(SUITES)] else None


@dataclass(frozen=True)
class MetricRow:
    """One metric of both runs, a and b; best is NaN where larger is not better."""

    name: str
    first: tuple[float, float]
    last: tuple[float, float]
    best: tuple[float, float]

    @property
    def difference(self) -> float:
        """Last value of b minus last value of a."""
        return self.last[1] - self.last[0]


@dataclass(frozen=True)
class AlsoCompared:
    """Answers in one further way (`[[evaluation.also]]`) that both sides have."""

    name: str
    held_out: list[MetricRow]
    differences: list[PairedChange]
    num_shared: int


@dataclass(frozen=True)
class Comparison:
    """Two runs or evaluations side by side: what differs, and what can be compared."""

    names: tuple[str, str]
    settings: list[tuple[str, str, str]]
    """Setting, value in a, value in b; "(not set)" where one lacks it."""
    held_out: list[MetricRow]
    """Over the held-out prompts that both runs evaluated."""
    differences: list[PairedChange]
    """Figures of the last evaluations, b against a, with intervals and a sign test."""
    num_shared: int
    """Held-out prompts that both evaluated."""
    also: list[AlsoCompared]
    """The same of every further way to answer that both have, in the order of a."""
    training: list[MetricRow]
    notices: list[str]
    charts: list[Chart]
    drawn: list[tuple[tuple[RunDir, SampleLine], tuple[RunDir, SampleLine]]]
    """Of the first prompts of which both runs drew something last: whose it is, and what."""

    def facts(self) -> dict[str, object]:
        """The comparison as programs read it: `mmrl compare --json`."""

        def own(one: Comparison | AlsoCompared) -> dict[str, object]:
            return {"prompts": one.num_shared, "changes": [each.facts() for each in one.differences], "held_out": one.held_out}

        return {
            "names": self.names,
            "settings": [{"setting": name, "a": a, "b": b} for name, a, b in self.settings],
            **own(self),
            "also": [{"name": one.name, **own(one)} for one in self.also],
            "training": self.training,
            "notices": self.notices,
        }


def compare(a: Path | str, b: Path | str) -> Comparison:
    """Read two run folders, or evaluations of `mmrl eval`; FileNotFoundError for others, ValueError for a damaged file."""
    sides = read_side(Path(a)), read_side(Path(b))
    names = run_names(sides[0].path, sides[1].path)
    shared = [task for task in sides[0].last if task in sides[1].last]
    suite = sides[0].suite if sides[0].suite is sides[1].suite else None
    asked = [] if suite is None else suite_figures(suite)
    held_out = [curves_of(side, shared, asked=asked) for side in sides]
    also = [compare_way(sides, way) for way in sides[0].also if way in sides[1].also]
    training = [{name: column(side.train, name) for name in metric_names(side.train)} for side in sides]
    notices = [f"{name}: {notice}" for name, side in zip(names, sides, strict=True) for notice in side.notices]
    if suite is not None and (counted := " and ".join(suite.macro) or ("point" if suite.counts_points else "")):
        notices.append(f"Suite {suite.name}: every prompt counts equally here; in the published figures every {counted} does.")
    with_curves = all(side.run is not None for side in sides)
    return Comparison(
        names,
        settings(sides[0].config, sides[1].config),
        metric_rows(held_out[0], held_out[1], lambda _: True),
        paired_changes(sides[0].last, sides[1].last, asked),
        len(shared),
        [one for one in also if one.num_shared],
        metric_rows(training[0], training[1], lambda name: is_reward(name) or name == "reward/total"),
        notices + notes_on_others([side.last for side in sides], len(shared)) + notes_on_ways(sides, names, also),
        overlays("held out", held_out, names) + overlays("training", training, names) if with_curves else [],
        drawn_pairs(sides, shared),
    )


def drawn_pairs(
    sides: tuple[Side, Side], shared: Sequence[Task]
) -> list[tuple[tuple[RunDir, SampleLine], tuple[RunDir, SampleLine]]]:
    """The first shared prompts of which both runs drew something; none of an evaluation."""
    a, b = sides
    if a.run is None or b.run is None:
        return []
    rows = [(a.last[task][0], b.last[task][0]) for task in shared]
    drew = [pair for pair in rows if all(any(row.line.get(kind) for kind in MADE) for row in pair)]
    return [((a.run.run, first), (b.run.run, second)) for first, second in drew[:NUM_PAIRS]]


def read_side(path: Path) -> Side:
    """A run's folder, an evaluation's folder, or its predictions.jsonl.

    Raises FileNotFoundError for something else, ValueError where a file is damaged or predictions.jsonl is empty.
    """
    place = EvaluationDir(path.parent if path.is_file() else path)
    file = path if path.is_file() else place.predictions
    if not file.is_file():
        data = load(path)
        found = {name: ends(data.run, also_split(name), data.box_space) for name in data.run.also_names()}
        also = {name: by_task(last or first) for name, (first, last) in found.items()}
        return Side(path, data.config, by_task(data.after or data.before), also, data.notices, data, data.train)
    ways: dict[str, list[SampleLine]] = {}
    for line in prediction_lines(file):
        ways.setdefault(line.get("way") or "", []).append(SampleLine(line, line.get("box_space")))
    rows = ways.pop("", [])
    if not rows:
        raise ValueError(f"{file} has no samples yet: let `mmrl eval` go on, by the same words as before")
    config = tomllib.loads(place.config_file.read_text(encoding="utf-8")) if place.config_file.is_file() else {}
    unfinished = [] if place.is_finished or path.is_file() else ["The evaluation is not finished: the same words go on with it."]
    also = {name: by_task(own) for name, own in ways.items()}
    return Side(place.path if not path.is_file() or place.is_begun else path, config, by_task(rows), also, unfinished)


def run_names(a: Path, b: Path) -> tuple[str, str]:
    """The folders' names, with those of as many folders around them as tell them apart."""
    left, right = a.resolve().parts, b.resolve().parts
    most = max(len(left), len(right))
    depth = next((depth for depth in range(1, most) if left[-depth:] != right[-depth:]), 1)
    return "/".join(left[-depth:]), "/".join(right[-depth:])


def settings(a: Mapping[str, object], b: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """Dotted names of the settings that differ, with both values; where a run lies is none of them."""
    left, right = flat(a), flat(b)
    names = [name for name in dict.fromkeys([*left, *right]) if name != "output" and left.get(name) != right.get(name)]
    return [(name, str(left.get(name, NOT_SET)), str(right.get(name, NOT_SET))) for name in names]


def compare_way(sides: tuple[Side, Side], way: str) -> AlsoCompared:
    """The answers of both sides in one further way."""
    first, second = (side.also[way] for side in sides)
    shared = [task for task in first if task in second]
    before, after = (curves_of(side, shared, way) for side in sides)
    return AlsoCompared(way, metric_rows(before, after, lambda _: True), paired_changes(first, second), len(shared))


def notes_on_ways(sides: tuple[Side, Side], names: tuple[str, str], also: Sequence[AlsoCompared]) -> list[str]:
    """Notes on further ways that the comparison leaves out."""
    alone = [(name, way) for name, side in zip(names, sides, strict=True) for way in side.also]
    alone = [(name, way) for name, way in alone if any(way not in side.also for side in sides)]
    found = [f"Only {name} has [[evaluation.also]] {way}: its answers are left out." for name, way in alone]
    return found + [f"The two share no prompt of [[evaluation.also]] {one.name}." for one in also if not one.num_shared]


def curves_of(side: Side, shared: Sequence[Task], way: str = "", asked: Sequence[SampleFigure] = ()) -> dict[str, Curve]:
    """Every figure of these prompts over the evaluations of a side; samples of a prompt are averaged first."""
    curves: dict[str, Curve] = {}
    for step, rows in evaluations(side, way) if shared else []:
        tasks = [rows[task] for task in shared if task in rows]
        for figure in asked or figures([row for task in tasks for row in task]):
            value = mean(mean(map(figure.value, task)) for task in tasks)
            if math.isfinite(value):
                steps, values = curves.setdefault(figure.name, ([], []))
                steps.append(float(step))
                values.append(value)
    return curves


def evaluations(side: Side, way: str = "") -> Iterator[tuple[int, Mapping[Task, list[SampleLine]]]]:
    """Step and answers of each: all of a run, the one of an evaluation; in one of the further ways where it is named."""
    if side.run is None:
        yield 0, side.also[way] if way else side.last
        return
    split = also_split(way) if way else EVAL
    for step in side.run.run.sample_steps(split):
        yield step, by_task(read_rows(side.run.run, split, [step], side.run.box_space))


def metric_names(lines: Sequence[Line]) -> list[str]:
    return [name for name in dict.fromkeys(name for line in lines for name in line) if name != "step"]


def metric_rows(a: Mapping[str, Curve], b: Mapping[str, Curve], has_best: Callable[[str], bool]) -> list[MetricRow]:
    """First, last and best finite value of every metric that both runs have; `has_best`: larger is better for this metric."""
    rows: list[MetricRow] = []
    for name in a:
        if name in b:
            left, right = ([v for v in side[name][1] if math.isfinite(v)] or [math.nan] for side in (a, b))
            best = (max(left), max(right)) if has_best(name) else (math.nan, math.nan)
            rows.append(MetricRow(name, (left[0], right[0]), (left[-1], right[-1]), best))
    return rows


def notes_on_others(last: Sequence[Mapping[Task, list[SampleLine]]], num_shared: int) -> list[str]:
    alone = len({*last[0], *last[1]}) - num_shared
    if not alone:
        return []
    if not num_shared:
        return ["The runs share no held-out prompt, so their evaluations are not compared."]
    return [f"{alone} held-out prompts were evaluated by one run only and are left out."]


def overlays(split: str, curves: Sequence[Mapping[str, Curve]], names: tuple[str, str]) -> list[Chart]:
    """One chart per metric that either run has."""
    charts: list[Chart] = []
    for metric in dict.fromkeys([*curves[0], *curves[1]]):
        series = [
            Series(name, *side[metric], style, dots=split == "held out")
            for name, side, style in zip(names, curves, ("a", "b"), strict=True)
            if metric in side
        ]
        charts.append(Chart(metric, line_chart(series, f"{metric}, {split}"), split))
    return charts


def write_comparison(comparison: Comparison, file: Path) -> Path:
    """The same as one HTML file without any address in it, with the curves over each other, and what was drawn side by side."""
    template = environment().get_template("compare.html.j2")
    pairs = [Pair(Example(*a, thumbnail), Example(*b, thumbnail), ("a", "b")) for a, b in comparison.drawn]
    replace_text(file, template.render(comparison=comparison, pairs=pairs))
    return file


NOT_SET = "(not set)"
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
    runs: list[tuple[object, ...]] = [(row.name, *row.first, *row.last, *row.best) for row in comparison.training]
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
    signs = one.num_prompts, one.higher, one.lower, one.sign_p
    return (one.name, one.before, one.after, one.difference, one.low, one.high, *signs, *one.unread)


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
