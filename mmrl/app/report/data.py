"""The contents of a run's files, read once, so that the report only has to show them."""

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from mmrl.answers.boxes.box import SPACES, Box, iou_matrix, is_inside
from mmrl.answers.boxes.detection import point_in_box
from mmrl.answers.boxes.parsing import parse_boxes
from mmrl.answers.spans.interval import Interval, union_iou
from mmrl.app.run.folder import JsonLines, Line, RunDir, read_lines, told_changes
from mmrl.app.run.sample_files import first_size
from mmrl.core.types import MediaSize

TRAIN, EVAL = "train", "eval"
K = TypeVar("K")
NUM_RESAMPLES = 2000
LEAST_PROMPTS = 10
"""With fewer no interval is drawn and nothing is said to rise or fall: a bootstrap of so few is far too narrow."""
Kind = Literal["iou", "share", "reward", "part"]
"""iou: in [0, 1]. share: of the prompts, written in percent. reward: the total. part: one reward of several."""


@dataclass(frozen=True)
class Row:
    """One line of a samples file."""

    line: Line
    space: str | None
    """How its completion writes boxes; None: it has none."""

    @property
    def prompt(self) -> str:
        return str(self.line["prompt"])

    @property
    def text(self) -> str:
        return self.line["completion"] or ""

    @property
    def total(self) -> float:
        return math.nan if self.line["total"] is None else float(self.line["total"])

    @property
    def size(self) -> MediaSize | None:
        return first_size(self.line["media_sizes"], self.line["media"])

    @cached_property
    def truth(self) -> list[Box]:
        """In pixels of the file."""
        return [Box(*corners) if label is None else Box(*corners, label=label) for *corners, label in self.line["answer_boxes"]]

    @cached_property
    def predicted(self) -> list[Box]:
        """Read from the completion, in pixels of the file."""
        size = self.size
        if size is None or self.space not in SPACES or not self.truth:
            return []
        return [box.to("pixel", size) for box in dict.fromkeys(parse_boxes(self.text, self.space))]

    @property
    def spans(self) -> "Spans | None":
        """The true spans and those of the completion; None where the answer is no span."""
        told = self.line.get("spans")
        if told is None:
            return None
        truth, predicted = ([Interval(start, end) for start, end in told[name]] for name in ("truth", "predicted"))
        return Spans(told["seconds"], truth, predicted)

    @property
    def outside(self) -> bool:
        """True if a predicted box lies beyond the picture."""
        return self.size is not None and not all(is_inside(box, self.size) for box in self.predicted)

    @cached_property
    def iou(self) -> float:
        """Best matching of predicted and true boxes, divided by the larger number: missing and surplus boxes count 0.

        All of it is 0 when a predicted box lies beyond the picture.

        For spans of time, of the times that all of them cover. NaN when the prompt has neither true box nor span, or the size of
        its picture or the space of its boxes is unknown.
        """
        if self.spans is not None:
            return union_iou(self.spans.predicted, self.spans.truth)
        if not self.truth or self.size is None or self.space not in SPACES:
            return math.nan
        if not self.predicted or self.outside:
            return 0.0
        from scipy.optimize import linear_sum_assignment

        overlaps = iou_matrix(self.predicted, self.truth).numpy()
        rows, columns = linear_sum_assignment(overlaps, maximize=True)
        return float(overlaps[rows, columns].sum()) / max(len(self.predicted), len(self.truth))

    @property
    def hits(self) -> float:
        """Share of the true boxes that hold the centre of a predicted one; 0 and NaN as for iou, NaN for spans."""
        if self.spans is not None:
            return math.nan
        if math.isnan(self.iou) or not self.predicted or self.outside:
            return self.iou
        return mean(float(any(point_in_box(box.center, true) for box in self.predicted)) for true in self.truth)


class Spans(NamedTuple):
    """In seconds of a clip that lasts `seconds`."""

    seconds: float
    truth: list[Interval]
    predicted: list[Interval]


@dataclass(frozen=True)
class Figure:
    """A number that every sample has; NaN where it has none."""

    name: str
    kind: Kind
    value: Callable[[Row], float]


@dataclass(frozen=True)
class Change:
    """One figure over the same held-out prompts before and after (or in one run and another).

    `low` and `high` bound the difference: a 95 % bootstrap interval; NaN below LEAST_PROMPTS prompts.
    """

    name: str
    before: float
    after: float
    low: float
    high: float
    num_prompts: int
    kind: Kind

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low)

    @property
    def clear(self) -> bool:
        """There is an interval, and it excludes no change."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class RunData:
    """Everything of a run that people look at."""

    run: RunDir
    config: Mapping[str, Any]
    config_text: str
    train: list[Line]
    evals: list[Line]
    first_train: list[Row]
    last_train: list[Row]
    before: list[Row]
    """Held-out samples of the first evaluation."""
    after: list[Row]
    """Of the last one; empty when there was only one."""
    warnings: list[tuple[str, int, int]]
    """Text, step it was first said at, how often."""
    versions: Mapping[str, str]
    box_space: str | None = None
    """The policy's, for samples lines that name none."""
    notices: list[str] = field(default_factory=list)
    """What is missing or damaged."""
    alarms: list[str] = field(default_factory=list)
    """Warnings of level error, which begin with their step."""

    @property
    def draws(self) -> bool:
        """True for a model that draws pictures; its metrics have other words than those of completions."""
        policy = self.config.get("policy", {})
        kind = policy.get("kind") if isinstance(policy, Mapping) else None
        return kind == "flow" or (kind is None and any(row.line.get("image") for row in (*self.before, *self.first_train)))

    @property
    def steps_done(self) -> int:
        return int(self.train[-1]["step"]) if self.train else 0

    @property
    def steps_wanted(self) -> int | None:
        steps = self.config.get("steps")
        return steps if isinstance(steps, int) else None


def load(path: Path | str) -> RunData:
    """Read a run's folder; what is missing or damaged is noted, not fatal.

    Raises:
        FileNotFoundError: the folder holds no run.
        ValueError: a line in the middle of a file is not JSON, or config.toml is not TOML.
    """
    run = RunDir.open(path)
    notices: list[str] = []
    metrics, warnings = run.read_metrics(), read_lines(run.warnings_file)
    if metrics.torn:
        notices.append("The last line of metrics.jsonl was torn (the run was killed while writing) and is left out.")
    config, config_text = read_config(run, notices)
    space = box_space(config)
    train_steps, eval_steps = run.sample_steps(TRAIN), run.sample_steps(EVAL)
    data = RunData(
        run,
        config,
        config_text,
        train=[line for line in metrics.lines if not is_evaluation(line)],
        evals=[line for line in metrics.lines if is_evaluation(line)],
        first_train=read_rows(run, TRAIN, train_steps[:1], space),
        last_train=read_rows(run, TRAIN, train_steps[1:][-1:], space),
        before=read_rows(run, EVAL, eval_steps[:1], space),
        after=read_rows(run, EVAL, eval_steps[1:][-1:], space),
        warnings=warning_counts(warnings),
        versions=json.loads(run.versions_file.read_text(encoding="utf-8")) if run.versions_file.exists() else {},
        box_space=space,
        notices=notices,
        alarms=[line["text"] for line in warnings.lines if line.get("level") == "error"],
    )
    notices += missing(data)
    notices += [f"Settings {text}." for text in told_changes(run)]
    return data


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


def read_config(run: RunDir, notices: list[str]) -> tuple[dict[str, Any], str]:
    if not run.config_file.exists():
        notices.append("config.toml is missing, so the settings are unknown.")
        return {}, ""
    text = run.config_file.read_text(encoding="utf-8")
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"{run.config_file} is not TOML ({error}): restore it, or delete it to get a report without settings"
        ) from None


def box_space(config: Mapping[str, object]) -> str | None:
    policy = config.get("policy", {})
    return policy.get("box_space") if isinstance(policy, Mapping) else None


def is_evaluation(line: Line) -> bool:
    return any(name.startswith("eval/") for name in line)


def read_rows(run: RunDir, split: str, steps: Sequence[int], space: str | None) -> list[Row]:
    return [Row(line, line["box_space"] or space) for step in steps for line in read_lines(run.samples_file(split, step)).lines]


def warning_counts(warnings: JsonLines) -> list[tuple[str, int, int]]:
    """Each text once, with its first step and how often it was said; a leading "step 12: " does not count as text."""
    found: dict[str, tuple[int, int]] = {}
    for line in warnings.lines:
        text = re.sub(r"^step \d+: ", "", line["text"])
        step, count = found.get(text, (line["step"], 0))
        found[text] = (step, count + 1)
    return [(text, step, count) for text, (step, count) in found.items()]


def by_prompt(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.prompt, []).append(row)
    return found


def pairs(data: RunData) -> list[tuple[Row, Row]]:
    """First sample before and after of every held-out prompt that was evaluated both times, in the order of the data."""
    after = by_prompt(data.after)
    return [(rows[0], after[prompt][0]) for prompt, rows in by_prompt(data.before).items() if prompt in after]


def changes(data: RunData) -> list[Change]:
    """Every figure over the prompts evaluated both times."""
    return paired_changes(by_prompt(data.before), by_prompt(data.after))


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Mean IoU, hits, Acc@0.5 of boxes, R@0.3 to 0.7 of spans, total reward, and each reward where there are several."""
    names = list(dict.fromkeys(name for row in rows for name in row.line["scores"]))
    return [
        Figure("Mean IoU", "iou", lambda row: row.iou),
        Figure("Hits", "share", lambda row: row.hits),
        Figure("Acc@0.5", "share", lambda row: math.nan if row.spans else indicator(row.iou, row.iou >= 0.5)),
        *(Figure(f"R@{least}", "share", lambda row, least=least: recall(row, least)) for least in (0.3, 0.5, 0.7)),
        Figure("Reward", "reward", lambda row: row.total),
        *(Figure(name, "part", lambda row, name=name: score(row, name)) for name in names if len(names) > 1),
    ]


def paired_changes(before: Mapping[K, list[Row]], after: Mapping[K, list[Row]]) -> list[Change]:
    """Every figure that both sides know, over the prompts (keys) that both have; samples of a prompt are averaged first."""
    prompts = [prompt for prompt in before if prompt in after]
    found: list[Change] = []
    for figure in figures([row for prompt in prompts for row in (*before[prompt], *after[prompt])]):
        both = [(mean(map(figure.value, before[p])), mean(map(figure.value, after[p]))) for p in prompts]
        kept = np.array([pair for pair in both if all(map(math.isfinite, pair))])
        if len(kept):
            low, high = bootstrap(kept[:, 1] - kept[:, 0]) if len(kept) >= LEAST_PROMPTS else (math.nan, math.nan)
            found.append(
                Change(figure.name, float(kept[:, 0].mean()), float(kept[:, 1].mean()), low, high, len(kept), figure.kind)
            )
    return found


def recall(row: Row, least: float) -> float:
    return float(row.iou >= least) if row.spans else math.nan


def indicator(iou: float, holds: bool) -> float:
    return float(holds) if math.isfinite(iou) else math.nan


def score(row: Row, name: str) -> float:
    value = row.line["scores"].get(name)
    return math.nan if value is None else float(value)


def mean(values: Any) -> float:
    """The mean of the finite values; NaN when there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def bootstrap(differences: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the mean over prompts drawn with replacement; the differences are paired by prompt."""
    draws = np.random.default_rng(seed).integers(len(differences), size=(NUM_RESAMPLES, len(differences)))
    low, high = np.quantile(differences[draws].mean(1), [0.025, 0.975])
    return float(low), float(high)


def column(lines: Sequence[Line], name: str) -> tuple[list[float], list[float]]:
    """Steps and values of one metric, from the lines that have it."""
    kept = [line for line in lines if name in line]
    return [float(line["step"]) for line in kept], [line[name] for line in kept]


def extremes(data: RunData, count: int) -> tuple[list[Row], list[Row]]:
    """The best and the worst samples of the last evaluation (else of the last steps seen), one per prompt, no sample twice."""
    rows = data.after or data.before or data.last_train or data.first_train
    ranked = sorted(
        (row for row in rows if math.isfinite(row.total)), key=lambda row: (row.total, row.iou if math.isfinite(row.iou) else 0.0)
    )
    best = one_per_prompt(ranked[::-1], count)
    taken = {id(row) for row in best}
    return best, one_per_prompt([row for row in ranked if id(row) not in taken], count)


def one_per_prompt(rows: Sequence[Row], count: int) -> list[Row]:
    first = {}
    for row in rows:
        first.setdefault(row.prompt, row)
    return list(first.values())[:count]
