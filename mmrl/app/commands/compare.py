"""Two runs side by side: settings that differ, figures of the same held-out prompts, curves over each other."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mmrl.app.files import replace_text
from mmrl.app.report.charts import Chart, Series, line_chart
from mmrl.app.report.data import EVAL, Change, Row, RunData, column, figures, load, mean, paired_changes, read_rows
from mmrl.app.report.page import environment
from mmrl.app.report.words import number, signed
from mmrl.app.run.folder import Line
from mmrl.app.run.trackers import flat, is_reward

Task = tuple[str, str]
"""Id and text of a prompt: equal ids of different data sets are different tasks."""
Curve = tuple[list[float], list[float]]
"""Steps and values."""


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
class Comparison:
    """Two runs side by side: what differs, and what can be compared."""

    names: tuple[str, str]
    settings: list[tuple[str, str, str]]
    """Setting, value in a, value in b; "(not set)" where one lacks it."""
    held_out: list[MetricRow]
    """Over the held-out prompts that both runs evaluated."""
    differences: list[Change]
    """Of the last evaluations, b against a, with intervals."""
    num_shared: int
    """Held-out prompts that both evaluated."""
    training: list[MetricRow]
    notices: list[str]
    charts: list[Chart]


def compare(run_a: Path | str, run_b: Path | str) -> Comparison:
    """Read two run folders.

    Raises:
        FileNotFoundError: one of them holds no run.
        ValueError: a file of one is damaged.
    """
    runs = load(run_a), load(run_b)
    names = run_names(Path(run_a), Path(run_b))
    last = [by_task(data.after or data.before) for data in runs]
    shared = [task for task in last[0] if task in last[1]]
    held_out = [held_out_curves(data, shared) for data in runs]
    training = [{name: column(data.train, name) for name in metric_names(data.train)} for data in runs]
    notices = [f"{name}: {notice}" for name, data in zip(names, runs, strict=True) for notice in data.notices]
    return Comparison(
        names,
        settings(runs[0].config, runs[1].config),
        metric_rows(held_out[0], held_out[1], lambda _: True),
        paired_changes(last[0], last[1]),
        len(shared),
        metric_rows(training[0], training[1], lambda name: is_reward(name) or name == "reward/total"),
        notices + unshared_notes(last, len(shared)),
        overlays("held out", held_out, names) + overlays("training", training, names),
    )


def run_names(a: Path, b: Path) -> tuple[str, str]:
    """The folders' names, with their parents' where those are equal."""
    a, b = a.resolve(), b.resolve()
    return (a.name, b.name) if a.name != b.name else (f"{a.parent.name}/{a.name}", f"{b.parent.name}/{b.name}")


def settings(a: Mapping[str, object], b: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """Dotted names of the settings that differ, with both values; where a run lies is none of them."""
    left, right = flat(a), flat(b)

    def setting_text(side: Mapping[str, object], name: str) -> str:
        return str(side[name]) if name in side else "(not set)"

    names = [name for name in dict.fromkeys([*left, *right]) if name != "output"]
    return [(name, setting_text(left, name), setting_text(right, name)) for name in names if left.get(name) != right.get(name)]


def by_task(rows: Sequence[Row]) -> dict[Task, list[Row]]:
    found: dict[Task, list[Row]] = {}
    for row in rows:
        found.setdefault((row.prompt, row.line["text"]), []).append(row)
    return found


def held_out_curves(data: RunData, shared: Sequence[Task]) -> dict[str, Curve]:
    """Every figure of these prompts over the evaluations of a run; samples of a prompt are averaged first."""
    curves: dict[str, Curve] = {}
    for step in data.run.sample_steps(EVAL) if shared else []:
        rows = by_task(read_rows(data.run, EVAL, [step], data.box_space))
        tasks = [rows[task] for task in shared if task in rows]
        for figure in figures([row for task in tasks for row in task]):
            value = mean(mean(map(figure.value, task)) for task in tasks)
            if math.isfinite(value):
                steps, values = curves.setdefault(figure.name, ([], []))
                steps.append(float(step))
                values.append(value)
    return curves


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


def unshared_notes(last: Sequence[Mapping[Task, list[Row]]], num_shared: int) -> list[str]:
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


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Notices, settings, held-out and training figures as tables."""
    a, b = (escape(name) for name in comparison.names)
    for notice in comparison.notices:
        console.print(escape(notice), style="yellow")
    table = Table("setting", a, b, title="Settings that differ")
    for row in comparison.settings:
        table.add_row(*map(escape, row))
    console.print(table if comparison.settings else "The settings are the same.")
    if comparison.held_out:
        title = f"Held out: the {comparison.num_shared} prompts that both evaluated"
        known = [change for change in comparison.differences if change.has_interval]
        intervals = {change.name: f"{signed(change.low)} to {signed(change.high)}" for change in known}
        console.print(metric_table(title, (a, b), comparison.held_out, intervals))
    if comparison.training:
        console.print(metric_table("Training", (a, b), comparison.training, {}))


def metric_table(title: str, names: tuple[str, str], rows: Sequence[MetricRow], intervals: Mapping[str, str]) -> Table:
    table = Table(title=title)
    table.add_column("metric")
    for heading in ("first", "last", "best"):
        for name in names:
            table.add_column(f"{heading}\n{name}", justify="right")
    table.add_column(f"last: {names[1]}\n- {names[0]}", justify="right")
    if intervals:
        table.add_column("95 % interval", justify="right")
    for row in rows:
        cells = [number(value) for pair in (row.first, row.last, row.best) for value in pair]
        extra = [intervals.get(row.name, "")] if intervals else []
        table.add_row(escape(row.name), *cells, signed(row.difference), *extra)
    return table


def write_comparison(comparison: Comparison, file: Path) -> Path:
    """The same as one HTML file without any address in it, with the curves over each other."""
    intervals = {change.name: change for change in comparison.differences if change.has_interval}
    replace_text(file, environment().get_template("compare.html.j2").render(comparison=comparison, intervals=intervals))
    return file
