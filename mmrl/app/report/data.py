"""The contents of a run's files, read once, so that the report only has to show them."""

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mmrl.app.report.charts import Span
from mmrl.app.report.figures import PairedChange, paired_changes
from mmrl.app.report.rows import SampleLine, by_task
from mmrl.app.report.timing import beside_sentence, phases
from mmrl.app.run.folder import Line, RunDir, also_split, lines_of_changes, read_lines
from mmrl.app.toml.tables import Values, value_at
from mmrl.training.settings import TRAINS, StageSettings, in_turn
from mmrl.training.watch.health import LOG_RATIO, stale_sentence

TRAIN, EVAL = "train", "eval"
BOX_SIZE = "box size"
"""The table by the area of the true box."""
SIZES = ("small", "medium", "large")
LEAST_MOVE = 0.01
"""No larger difference between two answers is one."""


@dataclass(frozen=True)
class RunData:
    """Everything of a run that people look at."""

    run: RunDir
    config: Values
    config_text: str
    train: list[Line]
    evals: list[Line]
    first_train: list[SampleLine] = field(default_factory=list[SampleLine])
    last_train: list[SampleLine] = field(default_factory=list[SampleLine])
    before: list[SampleLine] = field(default_factory=list[SampleLine])
    """Held-out samples of the first evaluation."""
    after: list[SampleLine] = field(default_factory=list[SampleLine])
    """Held-out samples of the last evaluation; empty when there was only one."""
    warnings: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    """Text, step it was first said at, how often."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    box_space: str | None = None
    """The policy's, for samples lines that name none."""
    notices: list[str] = field(default_factory=list)
    """Files that are missing or damaged."""
    alarms: list[str] = field(default_factory=list)
    """Warnings of level error, which begin with their step."""
    stages: list[Span] = field(default_factory=list[Span])
    """The stages of a chain that have taken steps."""

    @property
    def draws(self) -> bool:
        """True for a model that draws pictures; its metrics have other words than those of completions."""
        kind = value_at(self.config, "policy", "kind")
        return kind == "flow" or (kind is None and any(row.line.get("image") for row in (*self.before, *self.first_train)))

    @property
    def steps_done(self) -> int:
        return int(self.train[-1]["step"]) if self.train else 0

    @property
    def steps_wanted(self) -> int | None:
        """The number of the last step; None where nothing says it, or the last stage of a chain may end before."""
        return last_step(self.config)


def load(path: Path | str) -> RunData:
    """Read a run's folder; what is missing or damaged is noted, not fatal.

    Raises FileNotFoundError if it holds no run, and ValueError where a line in the middle of a file is not JSON, or config.toml
    is broken.
    """
    run = RunDir.open(path)
    notices: list[str] = []
    metrics, warnings = run.read_metrics(), read_lines(run.warnings_file)
    if metrics.torn:
        notices.append("The last line of metrics.jsonl was torn (the run was killed while writing) and is left out.")
    config, config_text = read_config(run, notices)
    space = value_at(config, "policy", "box_space")
    (first_train, last_train), (before, after) = (ends(run, split, space) for split in (TRAIN, EVAL))
    data = RunData(
        run,
        config,
        config_text,
        train=[line for line in metrics.lines if not is_evaluation(line)],
        evals=[line for line in metrics.lines if is_evaluation(line)],
        first_train=first_train,
        last_train=last_train,
        before=before,
        after=after,
        warnings=warning_counts(warnings.lines),
        versions=json.loads(run.versions_file.read_text(encoding="utf-8")) if run.versions_file.exists() else {},
        box_space=space,
        notices=notices,
        alarms=[line["text"] for line in warnings.lines if line.get("level") == "error"],
        stages=stages_taken(config, metrics.lines),
    )
    notices += missing(data)
    notices += [f"Settings {text}." for text in lines_of_changes(run)]
    if stale := stale_sentence(*column(data.train, LOG_RATIO)):
        notices.append(f"Stale samples: {stale}.")
    if beside := beside_sentence(data.train):
        notices.append(f"Two sides: {beside}.")
    return data


def chain_of(config: Values) -> list[StageSettings]:
    """The stages of a chain: how each is called, and what loops repeat; empty for a run that is no chain."""
    return [
        StageSettings(one["kind"], name=one.get("name", ""), rounds=one.get("rounds"), stages=tuple(one.get("stages", ())))
        for one in config.get("stage", [])
    ]


def last_step(config: Values) -> int | None:
    """The number of the last step that a config says; an error of Python's where somebody broke its numbers or stages."""
    turns = [config["stage"][i] for i, _ in in_turn(chain_of(config))] or [config]
    steps = [one.get("steps", value_at(one, "until", "most")) for one in turns if one.get("kind", "rl") in TRAINS]
    return None if None in steps or "until" in turns[-1] else sum(steps)


def stages_taken(config: Values, lines: Sequence[Line]) -> list[Span]:
    """The steps of each stage that trained, with its name; of a loop's, with the round."""
    stages, found = chain_of(config), list[Span]()
    for number, (i, in_round) in enumerate(in_turn(stages), start=1):
        steps = [line["step"] for line in lines if line.get("run/stage") == number and "loss" in line]
        if steps:
            name = f"{stages[i].label}, round {in_round}" if in_round else stages[i].label
            found.append(Span(min(steps), max(steps), f"stage {number}: {name}"))
    return found


def missing(data: RunData) -> list[str]:
    """Sentences about what this run does not have."""
    found: list[str] = []
    if not data.train:
        found.append("No step was finished, so there are no curves.")
    elif data.steps_wanted is not None and data.steps_done < data.steps_wanted:
        found.append(f"The run stopped after {data.steps_done} of {data.steps_wanted} steps; what follows describes those.")
    if not data.before:
        found.append("Held-out prompts were not evaluated, so nothing can be said about before and after.")
    elif not data.after:
        found.append("Held-out prompts were evaluated once only, so there is a before but no after.")
    return found


def read_config(run: RunDir, notices: list[str]) -> tuple[Values, str]:
    if not run.config_file.exists():
        notices.append("config.toml is missing, so the settings are unknown.")
        return {}, ""
    text = run.config_file.read_text(encoding="utf-8")
    try:
        config = tomllib.loads(text)
        last_step(config)
    except (KeyError, TypeError, ValueError) as error:
        what = "not TOML" if isinstance(error, tomllib.TOMLDecodeError) else "broken in steps or [[stage]]"
        raise ValueError(
            f"{run.config_file} is {what} ({error}): restore it, or delete it to get a report without settings"
        ) from None
    return config, text


def is_evaluation(line: Line) -> bool:
    return any(name.startswith("eval/") for name in line)


def read_rows(run: RunDir, split: str, steps: Sequence[int], space: str | None) -> list[SampleLine]:
    return [
        SampleLine(line, line["box_space"] or space) for step in steps for line in read_lines(run.samples_file(split, step)).lines
    ]


def ends(run: RunDir, split: str, space: str | None) -> tuple[list[SampleLine], list[SampleLine]]:
    """The samples of a split's first step and of its last one, empty where that is the first."""
    steps = run.sample_steps(split)
    return read_rows(run, split, steps[:1], space), read_rows(run, split, steps[1:][-1:], space)


def warning_counts(lines: Iterable[Line]) -> list[tuple[str, int, int]]:
    """Each text once, with its first step and how often it was said; a leading "step 12: " does not count as text."""
    found: dict[str, tuple[int, int]] = {}
    for line in lines:
        text = re.sub(r"^step \d+: ", "", line["text"])
        step, count = found.get(text, (line["step"], 0))
        found[text] = (step, count + 1)
    return [(text, step, count) for text, (step, count) in found.items()]


def pairs(data: RunData) -> list[tuple[SampleLine, SampleLine]]:
    """First sample before and after of every held-out prompt that was evaluated both times, in the order of the data."""
    after = by_task(data.after)
    return [(rows[0], after[prompt][0]) for prompt, rows in by_task(data.before).items() if prompt in after]


def changes(data: RunData) -> list[PairedChange]:
    """Every figure over the prompts evaluated both times."""
    return paired_changes(by_task(data.before), by_task(data.after))


def also_changes(data: RunData) -> dict[str, list[PairedChange]]:
    """The same of every further way to answer (`[[evaluation.also]]`), by its name."""
    found: dict[str, list[PairedChange]] = {}
    for name in data.run.also_names():
        first, last = ends(data.run, also_split(name), data.box_space)
        found[name] = paired_changes(by_task(first), by_task(last))
    return found


def all_changes(data: RunData) -> list[PairedChange]:
    """The figures of every way to answer; those of further ways begin with its name."""
    also = [replace(one, name=f"{name}: {one.name}") for name, own in also_changes(data).items() for one in own]
    return [*changes(data), *also]


def regressions(data: RunData) -> list[tuple[SampleLine, SampleLine]]:
    """The held-out prompts whose answer became worse, worst first; see `change_of`."""
    moved = [(change_of(before, after), before, after) for before, after in pairs(data)]
    worse = sorted((one for one in moved if one[0] < -LEAST_MOVE), key=lambda one: one[0])
    return [(before, after) for _, before, after in worse]


def change_of(before: SampleLine, after: SampleLine) -> float:
    """The change of the IoU where both have one, else of the total reward; NaN where a side has neither."""
    by_iou = after.iou - before.iou
    return by_iou if math.isfinite(by_iou) else after.total - before.total


def kinds(data: RunData) -> list[tuple[str, dict[str, list[PairedChange]]]]:
    """The changes of every kind of held-out prompts: a table per column of `[evaluation] by`, and one by the size of boxes.

    A column that all prompts have the same value of tells no kinds apart.
    """
    named = map(str, value_at(data.config, "evaluation", "by") or [])
    columns = [*named, *([BOX_SIZE] if any(row.box_size for row in data.before) else [])]
    before, after = by_task(data.before), by_task(data.after)
    found: list[tuple[str, dict[str, list[PairedChange]]]] = []
    for column in columns:
        of = {prompt: kind_of_row(rows[0], column) for prompt, rows in before.items()}
        tables: dict[str, list[PairedChange]] = {}
        for kind in in_order(set(of.values()) - {""}):
            own = {prompt: rows for prompt, rows in before.items() if of[prompt] == kind}
            tables[kind] = [one for one in paired_changes(own, after) if one.kind != "part"]
        found.append((column, {kind: own for kind, own in tables.items() if own}))
    return [(column, tables) for column, tables in found if len(tables) > 1]


def kind_of_row(row: SampleLine, column: str) -> str:
    """The value of a column of the prompt as a word; empty where it has none."""
    if column == BOX_SIZE:
        return row.box_size
    value = row.line.get("columns", {}).get(column, row.line.get("source", "") if column == "source" else None)
    return "" if value is None else str(value).strip()


def in_order(words: Iterable[str]) -> list[str]:
    """Sizes from small to large, everything else by the alphabet."""
    return sorted(words, key=lambda word: (SIZES.index(word) if word in SIZES else len(SIZES), word))


def column(lines: Sequence[Line], name: str) -> tuple[list[float], list[float]]:
    """Steps and values of one metric, from the lines that have it."""
    kept = [line for line in lines if name in line]
    return [float(line["step"]) for line in kept], [line[name] for line in kept]


def facts(data: RunData) -> dict[str, object]:
    """The run as programs read it: `mmrl report --json`."""
    return {
        "run": data.run.path,
        "steps": data.steps_done,
        "steps_wanted": data.steps_wanted,
        "config": data.config,
        "training": columns(data.train),
        "held_out": columns(data.evals),
        "stages": [one._asdict() for one in data.stages],
        "changes": [one.facts() for one in changes(data)],
        "also": {name: [one.facts() for one in own] for name, own in also_changes(data).items()},
        "time": phases(data.train),
        "warnings": [{"text": text, "step": step, "count": count} for text, step, count in data.warnings],
        "alarms": data.alarms,
        "notices": data.notices,
        "versions": data.versions,
    }


def columns(lines: Sequence[Line]) -> dict[str, dict[str, list[float]]]:
    """Steps and values of every metric."""
    names = dict.fromkeys(name for line in lines for name in line if name != "step")
    return {name: dict(zip(("steps", "values"), column(lines, name), strict=True)) for name in names}


def extremes(data: RunData, count: int) -> tuple[list[SampleLine], list[SampleLine]]:
    """The best and the worst samples of the last evaluation (else of the last steps seen), one per prompt, no sample twice."""
    rows = data.after or data.before or data.last_train or data.first_train
    ranked = sorted(
        (row for row in rows if math.isfinite(row.total)), key=lambda row: (row.total, row.iou if math.isfinite(row.iou) else 0.0)
    )
    best = [own[0] for own in by_task(ranked[::-1]).values()][:count]
    taken = {id(row) for row in best}
    return best, [own[0] for own in by_task([row for row in ranked if id(row) not in taken]).values()][:count]
