"""`mmrl arena` from its words to its page."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scipy import stats  # type: ignore[import-untyped]  # scipy ships no types

from mmrl.app.config.run import Resolved
from mmrl.app.errors import Terminal
from mmrl.app.files import json_text, replace_text
from mmrl.app.report.charts import Chart, Series, line_chart
from mmrl.app.report.page import environment
from mmrl.app.report.words import number
from mmrl.app.report.words import table as grid
from mmrl.app.run.context import RUNS, console
from mmrl.app.run.trackers import duration
from mmrl.lab.arena.contest import TASKS, Contest, check_prompts, label_of, resolve_run, start_of
from mmrl.lab.arena.lane import Lane, Point, Stint

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Standing:
    """One method at the end."""

    label: str
    finals: Mapping[int, float]
    """Seed -> the figure at the end; seeds whose run failed are left out."""
    steps: float
    """Training steps, mean over the seeds."""
    seconds: float
    """Seconds that they took, mean over the seeds."""
    curve: Sequence[tuple[float, float]]
    """(seconds, figure) at the marks, means over the seeds."""
    failures: Sequence[str]
    place: int = 0
    """1 + the number of methods that are clearly better; 0 where nothing was finished."""

    @property
    def mean(self) -> float:
        return mean([*self.finals.values()])

    @property
    def half_width(self) -> float:
        """Half of the 95 % t-interval over the seeds; NaN with fewer than two."""
        return half_width([*self.finals.values()])


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def half_width(values: Sequence[float]) -> float:
    """Half of the t-interval of the mean."""
    if len(values) < 2:
        return math.nan
    return float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def is_clearly_better(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Does the interval of the differences at equal seeds lie above 0? Never with fewer than two shared seeds."""
    differences = [one[seed] - other[seed] for seed in one if seed in other]
    return mean(differences) > half_width(differences)


def standings(lanes: Sequence[Lane], figure: str, budget_s: float) -> list[Standing]:
    """Methods by their mean, best first; those without a finished run last."""
    found: list[Standing] = []
    for label in dict.fromkeys(lane.label for lane in lanes):
        own = [lane for lane in lanes if lane.label == label]
        ended = {lane.seed: lane.points() for lane in own if lane.is_finished(budget_s) and not lane.failure()}
        finals = {seed: points[-1].metrics[figure] for seed, points in ended.items()}
        steps, seconds = mean([float(p[-1].step) for p in ended.values()]), mean([p[-1].seconds for p in ended.values()])
        failures = [failure for lane in own if (failure := lane.failure())]
        found.append(Standing(label, finals, steps, seconds, mean_curve([*ended.values()], figure), failures))
    better = [sum(is_clearly_better(other.finals, one.finals) for other in found) for one in found]
    placed = [replace(one, place=1 + count) if one.finals else one for one, count in zip(found, better, strict=True)]
    return sorted(placed, key=lambda one: (not one.finals, -one.mean if one.finals else 0.0, one.label))


def mean_curve(runs: Sequence[Sequence[Point]], figure: str) -> list[tuple[float, float]]:
    """Point by point over the runs, as far as all of them go."""
    length = min((len(points) for points in runs), default=0)
    marks = [[points[i] for points in runs] for i in range(length)]
    return [(mean([one.seconds for one in mark]), mean([one.metrics[figure] for one in mark])) for mark in marks]


SAME = ("task", "budget_s", "model", "marks", "overrides")
"""Settings that every run of a folder shares; methods and seeds may be added."""


def arena(contest: Contest, output: Path | None = None) -> Path:
    """Run what is missing of a contest, print the table and write the page; returns the page.

    A contest that was killed goes on where it was when it is run again with the same words.
    Raises the errors of `resolve_run`, and ValueError if the folder holds another contest.
    """
    folder = output or RUNS / f"arena-{contest.task}"
    configs = {(method, seed): resolve_run(contest, method, seed) for method in contest.methods for seed in contest.seeds}
    check_prompts(contest, [configs[method, contest.seeds[0]] for method in contest.methods])
    check_folder(contest, folder)
    lanes = {key: Lane(folder / label_of(key[0]) / f"seed-{key[1]}", label_of(key[0]), key[1]) for key in configs}
    console.print(cost(contest, [*lanes.values()], configs), highlight=False)
    if any(not lane.is_finished(contest.budget_s) for lane in lanes.values()):
        run_missing(replace(contest, model=start_of(contest)), lanes)
    table = standings([*lanes.values()], TASKS[contest.task].figure, contest.budget_s)
    start = first_point(lanes.values())
    print_standings(contest, table, start)
    write_results(contest, table, start, folder / "arena.json")
    page = write_page(contest, table, start, folder / "arena.html")
    console.print(f"arena: {page}", highlight=False)
    return page


def check_folder(contest: Contest, folder: Path) -> None:
    """Note the contest in its folder; ValueError if it holds a contest with other settings, or something else."""
    file = folder / "contest.json"
    settings = json.loads(json.dumps({name: asdict(contest)[name] for name in SAME}))
    if file.exists():
        known = json.loads(file.read_text(encoding="utf-8"))
        other = next((name for name in SAME if known.get(name) != settings[name]), None)
        if other is not None:
            raise ValueError(
                f"{folder} holds an arena whose {other} is {known.get(other)!r}, not {settings[other]!r}: choose another --output"
            )
        return
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} holds something else than an arena: choose another --output")
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(file, json.dumps(settings, indent=1) + "\n")


def cost(contest: Contest, lanes: Sequence[Lane], configs: dict[tuple[str, int], Resolved]) -> str:
    """The cost of the contest, said before it starts."""
    left = [lane for lane in lanes if not lane.is_finished(contest.budget_s)]
    seconds = sum(lane.seconds_left(contest.budget_s) for lane in lanes)
    prompts = next(iter(configs.values())).config.evaluation.num_prompts
    whole = (
        f"{contest.num_runs} runs ({len(contest.methods)} methods, {len(contest.seeds)} seeds) of {contest.budget_s:g} seconds: "
        f"{duration(contest.num_runs * contest.budget_s)} of training"
    )
    done = "" if len(left) == len(lanes) else f"; {len(lanes) - len(left)} are done, {duration(seconds)} are left"
    return f"{whole}{done}. Besides, {contest.marks} evaluations of {prompts} prompts per run, which are not counted."


def run_missing(contest: Contest, lanes: dict[tuple[str, int], Lane]) -> None:
    """All runs that are not finished, seed by seed, so that a contest that is stopped compares what there is."""
    for seed in contest.seeds:
        for method in contest.methods:
            lane = lanes[method, seed]
            if lane.is_finished(contest.budget_s):
                continue
            console.print(f"{lane.label}, seed {seed}", highlight=False)
            resolved = resolve_run(contest, method, seed)
            Stint(lane, resolved, contest.budget_s, contest.marks, first_point(lanes.values())).run()
            if failure := lane.failure():
                console.print(f"  ended before its time: {failure}", highlight=False, markup=False)


def first_point(lanes: Any) -> Point | None:
    """The evaluation of the weights that all begin from, which is the same for all."""
    return next((points[0] for lane in lanes if (points := lane.points())), None)


def words(contest: Contest) -> list[str]:
    """All that the table says, and that it does not."""
    found = [
        f"Equal compute: {contest.budget_s:g} seconds of training per run (of all cores of the process on a CPU, of the wall on "
        "a GPU); evaluations are not counted. A run ends before the step that would pass them, by the time of the step before, "
        "and makes one at least: the table has the seconds used.",
        "Every method begins from the same weights, with the task's learning rate and as many samples per step; nothing was "
        "tuned for any method, and a method may do better with other settings.",
        "Intervals are 95 % over seeds. A place is one more than the number of methods that are clearly better: of equal places "
        "none is shown to be better, whatever the order of their means. With many pairs some seem clear by chance.",
    ]
    if len(contest.seeds) < 3:
        found.append("With so few seeds hardly any difference can be clear: take three or more to say who is better.")
    return found


def print_standings(contest: Contest, table: Sequence[Standing], start: Point | None) -> None:
    figure, rows = TASKS[contest.task].figure, list[tuple[str, ...]]()
    if start is not None:
        rows.append(("", "start", number(start.metrics[figure]), "", "0", "0"))
    for one in table:
        used = ("", "") if math.isnan(one.steps) else (f"{one.steps:.0f}", f"{one.seconds:.1f}")
        rows.append((str(one.place or ""), one.label, number(one.mean), number(one.half_width), *used))
    texts, title = {"place": None, "method": None}, f"arena {contest.task}, {contest.budget_s:g} s each"
    terminal = Terminal(markup=True)
    terminal.print(grid(texts, (figure, "+-", "steps", "seconds"), rows, title))
    for line in words(contest):
        terminal.print(line)


def write_results(contest: Contest, table: Sequence[Standing], start: Point | None, file: Path) -> None:
    """The same as JSON, for other programs."""
    rows = [
        {
            "method": one.label,
            "place": one.place,
            "mean": round(one.mean, 4),
            "half_width": round(one.half_width, 4),
            "seeds": {seed: round(value, 4) for seed, value in one.finals.items()},
            "steps": None if math.isnan(one.steps) else round(one.steps),
            "seconds": round(one.seconds, 2),
            "failures": one.failures,
        }
        for one in table
    ]
    figure = TASKS[contest.task].figure
    facts = {"task": contest.task, "budget_s": contest.budget_s, "seeds": contest.seeds, "figure": figure}
    start_value = None if start is None else round(start.metrics[figure], 4)
    replace_text(file, json_text({**facts, "start": start_value, "rows": rows}) + "\n")


def write_page(contest: Contest, table: Sequence[Standing], start: Point | None, file: Path) -> Path:
    """One HTML file without any address in it: places, intervals, and every method's curve over that of the best."""
    figure = TASKS[contest.task].figure
    best = table[0]
    charts: list[Chart] = []
    for one in table:
        pairs = [(best, "b"), (one, "a")] if one is not best else [(one, "a")]
        series = [
            Series(each.label, [x for x, _ in each.curve], [y for _, y in each.curve], style, dots=True) for each, style in pairs
        ]
        charts.append(Chart(one.label, line_chart(series, f"{figure} of {one.label} over seconds", x_name="s")))
    template = environment().get_template("arena.html.j2")
    replace_text(
        file, template.render(contest=contest, rows=table, start=start, figure=figure, words=words(contest), charts=charts)
    )
    return file
