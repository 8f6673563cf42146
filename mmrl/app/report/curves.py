"""The curves of a run's page: rewards, held-out figures with their intervals, the health of the training, everything else."""

import math
from collections.abc import Mapping, Sequence

from mmrl.app.report import words
from mmrl.app.report.charts import Chart, Series, histogram, line_chart
from mmrl.app.report.data import EVAL, TRAIN, RunData, column, read_rows
from mmrl.app.report.figures import Estimate, estimates
from mmrl.app.report.rows import by_task, mean
from mmrl.app.run.folder import CHANGED
from mmrl.app.run.sample_files import even_indices
from mmrl.app.run.trackers import is_reward

MAX_FILES = 40
"""Most sample files read for a curve; of more, this many are picked evenly."""
DIVERSITY = ("train/diversity", "eval/diversity")
HELD_OUT_LENGTH = "eval/completion_length"
"""Tokens of held-out completions, even where a reward is called length."""
IOU = "Mean IoU"
NONE = (math.nan, math.nan)
Held = Mapping[int, Mapping[str, Estimate]]
"""Step -> figure -> its estimate, of the evaluations whose samples were kept."""


def curves(data: RunData) -> list[Chart]:
    """Total reward, mean IoU, every reward, the length of held-out completions, how different pictures are, what was taught."""
    held = evaluations(data)
    reward, *others = reward_charts(data, held)
    return [
        *(chart for chart in (reward, iou_chart(data, held), *others) if chart is not None),
        *charts_of(data, taught_words(data)),
    ]


def reward_charts(data: RunData, held: Held | None = None) -> list[Chart | None]:
    """The curves of metrics alone: the total reward first, None where it was never logged."""
    charts = [both_splits(data, "Reward", "reward/total", "eval/total", bounds(held or {}, "Reward"))]
    for name in reward_names(data):
        twin = f"eval/{name}"
        twin = "" if twin == HELD_OUT_LENGTH else twin
        charts.append(both_splits(data, name, f"reward/{name}", twin, bounds(held or {}, name)))
    charts.append(None if data.draws else both_splits(data, "Tokens per completion, held out", "", HELD_OUT_LENGTH))
    charts.append(both_splits(data, "Diversity of a prompt's samples", *DIVERSITY))
    return charts


def evaluations(data: RunData) -> Held:
    """The figures of the evaluations, of at most MAX_FILES of them."""
    rows = {step: read_rows(data.run, EVAL, [step], data.box_space) for step in evenly(data.run.sample_steps(EVAL))}
    return {step: estimates(by_task(own)) for step, own in rows.items()}


def evenly(steps: Sequence[int], most: int = MAX_FILES) -> list[int]:
    """At most this many of the steps, first and last among them."""
    return [steps[i] for i in even_indices(len(steps), most)]


def bounds(held: Held, figure: str) -> Mapping[int, tuple[float, float]]:
    """Step -> the ends of a figure's interval, where it has one."""
    found = {step: own[figure] for step, own in held.items() if figure in own}
    return {step: (one.low, one.high) for step, one in found.items() if one.has_interval}


def reward_names(data: RunData) -> list[str]:
    """Names of the rewards that training or evaluation logged, without their parts."""
    names = [name for line in (*data.train, *data.evals) for name in line]
    held_out = [
        n for n in names if n.startswith("eval/") and n.count("/") == 1 and n not in ("eval/total", HELD_OUT_LENGTH, DIVERSITY[1])
    ]
    return list(dict.fromkeys(name.partition("/")[2] for name in (*filter(is_reward, names), *held_out)))


def both_splits(
    data: RunData, title: str, train: str, held_out: str, ends: Mapping[int, tuple[float, float]] | None = None
) -> Chart | None:
    """Training and held-out values of a metric; `ends` are intervals of the held-out ones by their step."""
    series = [
        Series(label, *points, style, dots, [ends.get(int(step), NONE) for step in points[0]] if dots and ends else ())
        for label, points, style, dots in (
            ("training", column(data.train, train), TRAIN, False),
            ("held out", column(data.evals, held_out), EVAL, True),
        )
        if points[0]
    ]
    return Chart(title, line_chart(series, f"{title} over training steps", stages=data.stages)) if series else None


def iou_chart(data: RunData, held: Held) -> Chart | None:
    """Mean IoU of the samples that were kept, by the same definition as the headline."""
    series: list[Series] = []
    steps = evenly(data.run.sample_steps(TRAIN))
    means = [mean(row.iou for row in read_rows(data.run, TRAIN, [step], data.box_space)) for step in steps]
    if any(map(math.isfinite, means)):
        series.append(Series("training samples", [float(step) for step in steps], means, TRAIN))
    known = {step: own[IOU] for step, own in held.items() if IOU in own}
    if known:
        ends = [(one.low, one.high) for one in known.values()]
        series.append(Series("held out", [float(step) for step in known], [one.mean for one in known.values()], EVAL, True, ends))
    return Chart(IOU, line_chart(series, "Mean IoU over training steps", stages=data.stages)) if series else None


def taught_words(data: RunData) -> words.Words:
    """Those of what teaches, with a curve for each of several teachers."""
    title, metric, note = words.AGREEMENT
    names = dict.fromkeys(name for line in data.train for name in line if name.startswith(f"{metric}/"))
    return (*words.TAUGHT, *((f"{title} {name.removeprefix(metric + '/')}", name, note) for name in names))


def health_words(data: RunData) -> words.Words:
    return words.HEALTH_OF_PICTURES if data.draws else words.HEALTH_OF_TEXTS


def health(data: RunData) -> list[Chart]:
    return charts_of(data, health_words(data))


def charts_of(data: RunData, metrics: words.Words) -> list[Chart]:
    """Curves of training with a note below, of those metrics that were logged."""
    return [
        Chart(
            title,
            line_chart(
                [Series("training", *column(data.train, metric), TRAIN)], f"{title} over training steps", stages=data.stages
            ),
            note,
        )
        for title, metric, note in metrics
        if column(data.train, metric)[0]
    ]


def others(data: RunData) -> list[Chart]:
    """Every metric that no other chart shows; parts of rewards with their held-out twin."""
    shown = {"step", CHANGED, "reward/total", "reward/length", "reward/diversity", DIVERSITY[0]}
    shown |= {metric for _, metric, _ in (*health_words(data), *taught_words(data))} | set(
        words.NOT_OF_PICTURES if data.draws else ()
    )
    shown |= {f"reward/{name}" for name in reward_names(data)}
    names = dict.fromkeys(name.replace("eval/", "reward/", 1) for line in (*data.train, *data.evals) for name in line)
    charts = [both_splits(data, name, name, name.replace("reward/", "eval/", 1)) for name in names if name not in shown]
    return [chart for chart in charts if chart is not None]


def reward_histogram(data: RunData) -> Chart | None:
    """Total rewards of the first and last samples kept: held-out ones, else those of training."""
    for split, first, last in (("held-out", data.before, data.after), ("training", data.first_train, data.last_train)):
        if first:
            groups = [
                (f"step {rows[0].line['step']}", [row.total for row in rows], style)
                for rows, style in ((first, "a"), (last, "b"))
                if rows
            ]
            title = f"Rewards of {split} samples, first and last" if last else f"Rewards of {split} samples"
            return Chart(title, histogram(groups, title))
    return None
