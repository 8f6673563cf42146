"""The numbers of an evaluation with their uncertainty, those that papers report of a suite among them; as tables or as TSV."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.markup import escape
from rich.table import Table as Grid

from mmrl.app.config.run import Resolved, resolve
from mmrl.app.errors import Terminal
from mmrl.app.plugins.lab import TINY
from mmrl.app.plugins.suites import find_suite
from mmrl.app.report.data import BOX_SIZE, in_order, kind_of_row
from mmrl.app.report.figures import LEAST_PROMPTS, NUM_RESAMPLES, Estimate, SampleFigure, estimate, estimates, unread_by, value_of
from mmrl.app.report.rows import SampleLine, by_task, mean, number_of
from mmrl.app.report.words import number, percent, table, write_tsv
from mmrl.app.run.folder import Line, RunDir
from mmrl.app.toml.tables import COMMAND_LINE, Table, Values
from mmrl.data.suites.suite import Suite, kinds_of, part_of

OF_BOXES = ("Mean IoU", "Hits", "Acc@0.5")
"""The figures of a table by the size of boxes."""
COLUMNS = ("way", "column", "kind", "figure", "prompts", "mean", "low", "high", "interval", "unparsed")
"""The header of the TSV, and the keys of summary.json."""


@dataclass(frozen=True)
class TableNumber:
    """One figure of one kind of prompts: `TableNumber("", "split", "testA", "Acc@0.5", Estimate(...))`."""

    way: str
    """Empty for the first way to answer, else a name of `[[evaluation.also]]`."""
    column: str
    """Empty where all prompts are meant."""
    kind: str
    figure: str
    estimate: Estimate


def numbers(lines: Sequence[Line], by: Sequence[str]) -> list[TableNumber]:
    """Every figure over all prompts, then by each column, by source where there are several, and by the size of boxes."""
    found: list[TableNumber] = []
    for way in dict.fromkeys(line.get("way", "") for line in lines):
        rows = [SampleLine(line, line["box_space"]) for line in lines if line.get("way", "") == way]
        found += [TableNumber(way, "", "", name, one) for name, one in estimates(by_task(rows), parts=True).items()]
        sources = {row.line.get("source", "") for row in rows}
        columns = [*by, *(["source"] if len(sources) > 1 and "source" not in by else []), BOX_SIZE]
        for column in columns:
            found += of_column(rows, way, column)
    return found


def of_column(rows: Sequence[SampleLine], way: str, column: str) -> Iterator[TableNumber]:
    """The figures of every value of a column: rewards and what is read from boxes and spans, without rewards' parts."""
    for kind in in_order({kind_of_row(row, column) for row in rows} - {""}):
        own = estimates(by_task(row for row in rows if kind_of_row(row, column) == kind))
        for name, one in own.items():
            if column != BOX_SIZE or name in OF_BOXES:
                yield TableNumber(way, column, kind, name, one)


def metrics_of(lines: Sequence[Line], by: Sequence[str]) -> dict[str, float]:
    """The metrics that a run writes of its evaluations, read from predictions: eval/<reward>, eval/total, ..."""
    found: dict[str, float] = {}
    for way in dict.fromkeys(line.get("way", "") for line in lines):
        own = [line for line in lines if line.get("way", "") == way]
        found |= metrics_of_way(own, f"eval/{way}" if way else "eval", by)
    return found


def metrics_of_way(lines: Sequence[Line], prefix: str, by: Sequence[str]) -> dict[str, float]:
    parts = dict.fromkeys(name for line in lines for name in line.get("parts", {}))
    found = rewards_of(lines, prefix)
    found |= {f"{prefix}/{name}": mean(number_of(line.get("parts", {}).get(name)) for line in lines) for name in parts}
    for start, column in (("source", "source"), *((f"by/{column}", column) for column in by)):
        kinds = [kind_of_row(SampleLine(line, None), column) for line in lines]
        for kind in dict.fromkeys(filter(None, kinds)):
            own = [line for line, one in zip(lines, kinds, strict=True) if one == kind]
            found |= rewards_of(own, f"{prefix}/{start}/{kind.replace('/', '|')}", only_answered=True)
    if any(line.get("tokens") is not None for line in lines):
        found[f"{prefix}/completion_length"] = mean(number_of(line.get("tokens")) for line in lines)
    spread = {line["group"]: line["diversity"] for line in lines if line.get("diversity") is not None}
    return found | ({f"{prefix}/diversity": mean(spread.values())} if spread else {})


def rewards_of(lines: Sequence[Line], prefix: str, only_answered: bool = False) -> dict[str, float]:
    """The mean of every reward and of the total."""
    names = dict.fromkeys(name for line in lines for name in line["scores"])
    found = {f"{prefix}/{name}": mean(number_of(line["scores"].get(name)) for line in lines) for name in names}
    found = {name: value for name, value in found.items() if math.isfinite(value) or not only_answered}
    return found | {f"{prefix}/total": mean(number_of(line["total"]) for line in lines)}


def summary(found: Sequence[TableNumber], facts: Mapping[str, object], metrics: Mapping[str, float]) -> dict[str, object]:
    """The contents of summary.json: the facts, every number with its interval, and the metrics under the names of runs."""
    known = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    return {**facts, "numbers": [cells(one) for one in found], "metrics": known}


def cells(one: TableNumber) -> dict[str, object]:
    """One number by COLUMNS; null where there is none."""
    own = asdict(one.estimate)
    middle, low, high, unread = (own[name] if math.isfinite(own[name]) else None for name in ("mean", "low", "high", "unread"))
    interval = one.estimate.how if one.estimate.has_interval else f"none: {one.estimate.why_none}"
    facts = (one.way, one.column, one.kind, one.figure, one.estimate.num_prompts, middle, low, high, interval, unread)
    return dict(zip(COLUMNS, facts, strict=True))


def print_numbers(title: str, found: Sequence[TableNumber], console: Terminal) -> None:
    """Tables that fit 80 columns on a terminal; into a pipe one TSV with every digit."""
    if not console.is_terminal:
        return write_tsv(console, COLUMNS, [list(cells(one).values()) for one in found])
    console.print(escape(title))
    for way, column in dict.fromkeys((one.way, one.column) for one in found):
        own = [one for one in found if (one.way, one.column) == (way, column)]
        console.print(number_table(", ".join(filter(None, (way, f"by {column}" if column else ""))), own))


def number_table(title: str, found: Sequence[TableNumber]) -> Grid:
    """Figures below each other; the kind of prompt is in front of its first one."""
    with_kinds, rows, last = any(one.kind for one in found), list[list[str]](), None
    for one in found:
        kind, own = [one.kind if one.kind != last else ""] if with_kinds else [], one.estimate
        interval = f"{number(own.low)} to {number(own.high)}" if own.has_interval else f"none: {own.why_none}"
        unread = percent(own.unread) if math.isfinite(own.unread) else ""
        rows.append([*kind, one.figure, str(own.num_prompts), number(own.mean), interval, unread])
        last = one.kind
    texts = {"kind": 22, "figure": 24} if with_kinds else {"figure": 34}
    return table(texts, ("prompts", "mean", "95 % interval", "unparsed"), rows, escape(title))


OF_JUDGE = "suite_judge"
NAMED = ("suite", OF_JUDGE)
"""Rewards that are told which suite they score."""
ALL = 2**31
"""More held-out prompts than there are: all of them."""
PRESETS = {"text": "dr_grpo", "flow": "cps", "token_image": "dr_grpo"}
"""Kind of policy -> algorithms that need no reward of their own; nothing trains."""

OWN_KEYS = ("reward", "also", "sampling")
"""Of a run's [evaluation], what a suite does not take over; texts are then sampled greedily."""
PROTOCOL = ("policy.answer_format", "policy.system_prompt", "policy.sampling", "evaluation.sampling", "reward")
PROTOCOL += ("evaluation.num_samples", "evaluation.data.any_size")
"""Settings without which an evaluation is not the published one."""
PLACE_OF_JUDGE = tuple(f".server.{key}" for key in ("url", "api_key_env", "timeout_s", "deadline_s", "retries", "concurrency"))
"""Ends of settings that say how a judge is reached, and nothing of what it answers."""


def of_suite(named: str, subject: str, data: str | None, overrides: Sequence[str]) -> tuple[Resolved, RunDir | None]:
    """The settings with which a run's folder, or a model as it is, answers a suite of this name or file; overrides go last.

    Raises ValueError for a run of the other kind, and as in `resolve`.
    """
    suite, (place, colon, wanted) = find_suite(named), named.partition(":")
    found = f"{Path(place).expanduser().resolve()}{colon}{wanted}" if place.endswith(".py") else named
    run = RunDir(Path(subject).expanduser())
    run = run if run.config_file.is_file() else None
    by = f"suite {suite.name}"
    table = Table.of(bare(suite, subject), by) if run is None else Table.read(run.config_file)
    kind = table.values["policy"].get("kind", "text")
    if (kind == "text") != (suite.kind == "text"):
        raise ValueError(
            f"{subject} has a policy of kind {kind!r}, and suite {suite.name} is for {suite.kind!r}: take another suite"
        )
    source: Values = {"use": "suite", "suite": found}
    reward: Values = dict(suite.reward)
    table.set(("data",), source | ({} if data is None else {"path": data}), by)
    table.set(("algorithm",), {"preset": PRESETS[kind]}, by)
    table.set(("reward",), [reward | ({"suite": found} if reward["use"] in NAMED else {})], by)
    kept = {key: value for key, value in table.values.get("evaluation", {}).items() if key not in OWN_KEYS}
    own = {"data": deepcopy(table.values["data"]), "num_prompts": ALL, "num_samples": suite.num_samples, "by": list(suite.by)}
    table.set(("evaluation",), kept | own, by)
    if suite.kind == "text":
        asked = {"answer_format": "none", "system_prompt": "", "sampling": {"max_new_tokens": suite.max_new_tokens}}
        for key, value in asked.items():
            table.set(("policy", key), value, by)
    for key in ("sampler", "cluster"):
        table.values.pop(key, None)
    return resolve(table, overrides, suite.name), run


def bare(suite: Suite, model: str) -> Values:
    """A config of nothing but a model."""
    half = torch.cuda.is_available() and not model.startswith(TINY)
    return {"policy": {"kind": suite.kind, "model": model, **({"dtype": "bfloat16"} if half else {})}}


def suite_facts(suite: Suite, resolved: Resolved) -> dict[str, object]:
    """The part of summary.json that says which suite it is, and whether it was evaluated as published."""
    said = (".".join(path) for path, by in resolved.table.origins.items() if by == COMMAND_LINE)
    changed = [key for key in said if key.startswith(PROTOCOL) and not key.endswith(PLACE_OF_JUDGE)]
    return {"suite": suite.name, "paper": suite.paper, "published_prompts": suite.num_prompts, "changed": changed}


def suite_words(suite: Suite, facts: Mapping[str, object]) -> str:
    """The suite, how much of it was answered, and what of its protocol was changed."""
    changed = ", ".join(map(str, facts["changed"])) if isinstance(facts["changed"], list) else ""
    return f"suite {suite.name}, {facts['prompts']} of {suite.num_prompts} prompts" + (
        f", with other {changed}" if changed else ""
    )


def suite_numbers(suite: Suite, lines: Sequence[Line]) -> list[TableNumber]:
    """The suite's figures over all prompts, the headline first, then of every value of its columns."""
    found: list[TableNumber] = []
    for way in dict.fromkeys(line.get("way", "") for line in lines):
        rows = [SampleLine(line, line["box_space"]) for line in lines if line.get("way", "") == way]
        found += [TableNumber(way, "", "", name, figure(suite.macro, key, rows)) for name, key in suite.figures.items()]
        for column in suite.by:
            found += suite_column(suite, way, column, rows)
    return found


def suite_column(suite: Suite, way: str, column: str, rows: Sequence[SampleLine]) -> Iterator[TableNumber]:
    inner = suite.macro[suite.macro.index(column) + 1 :] if column in suite.macro else ()
    for kind in in_order({kind_of_row(row, column) for row in rows}):
        own = [row for row in rows if kind_of_row(row, column) == kind]
        for i, (name, key) in enumerate(suite.figures.items()):
            # kinds of points are not broken down again
            if i == 0 or isinstance(key, str):
                one = figure(inner, key, own)
                if one.num_prompts:
                    yield TableNumber(way, column, kind, name, one)


def figure(macro: Sequence[str], key: str | Sequence[str], rows: Sequence[SampleLine]) -> Estimate:
    """The number that a suite's figure names; of no prompts where none has it."""
    if not isinstance(key, str):
        return of_points(key, rows)
    return headline(macro, key, rows) if prompt_means(key, rows) else Estimate(math.nan, math.nan, math.nan, 0, "none")


def of_points(kinds: Sequence[str], rows: Sequence[SampleLine]) -> Estimate:
    """The mean over kinds of the share of points that are right, over all samples; prompts are drawn with all their kinds."""
    sums = np.array([[point_sums(kind, own) for kind in kinds] for own in by_task(rows).values()])
    sums = sums[sums[:, :, 1].sum(1) > 0]
    count = len(sums)
    if not count:
        return Estimate(math.nan, math.nan, math.nan, 0, "none")
    middle, unparsed = float(mean_share(sums.sum(0, keepdims=True))[0]), unread(OF_JUDGE, rows)

    def draw(random: np.random.Generator) -> np.ndarray:
        times = random.multinomial(count, np.full(count, 1 / count), size=NUM_RESAMPLES)
        return mean_share(np.einsum("rp,pks->rks", times, sums, optimize=True))

    return with_interval(middle, count, unparsed, draw)


def with_interval(middle: float, count: int, unparsed: float, draw: Callable[[np.random.Generator], np.ndarray]) -> Estimate:
    """A figure with the interval of what it is over prompts that are drawn again; none for few prompts."""
    if count < LEAST_PROMPTS:
        return Estimate(middle, math.nan, math.nan, count, "none", unparsed)
    low, high = np.quantile(draw(np.random.default_rng(0)), [0.025, 0.975])
    return Estimate(middle, float(low), float(high), count, "bootstrap", unparsed)


def mean_share(sums: np.ndarray) -> np.ndarray:
    """The mean over kinds, along the last axis but one, of right by all points; kinds without a point are left out."""
    right, asked = sums[..., 0], sums[..., 1]
    shares = np.divide(right, asked, out=np.zeros_like(right, dtype=np.float64), where=asked > 0)
    return shares.sum(-1) / (asked > 0).sum(-1)


def point_sums(kind: str, rows: Sequence[SampleLine]) -> tuple[float, float]:
    """How many points of a kind are right in the samples of a prompt, and how many were judged."""
    right = asked = 0.0
    for row in rows:
        share = value_of(row, f"{OF_JUDGE}/{part_of(kind)}")
        if math.isfinite(share):
            many = sum(kind in kinds_of(point) for point in row.line["columns"]["points"])
            right, asked = right + share * many, asked + many
    return right, asked


def headline(macro: Sequence[str], key: str, rows: Sequence[SampleLine]) -> Estimate:
    """The mean over prompts, or of the means of kinds that count equally."""
    if len(weighted := list(leaves(macro, key, rows))) <= 1:
        return estimate(prompt_means(key, rows) or [math.nan], unread(key, rows))
    count = sum(len(values) for _, values in weighted)
    middle = sum(weight * float(values.mean()) for weight, values in weighted)

    def draw(random: np.random.Generator) -> np.ndarray:
        drawn = np.zeros(NUM_RESAMPLES)
        for weight, values in weighted:
            drawn += weight * values[random.integers(len(values), size=(NUM_RESAMPLES, len(values)))].mean(1)
        return drawn

    return with_interval(middle, count, unread(key, rows), draw)


def leaves(
    columns: Sequence[str], key: str, rows: Sequence[SampleLine], weight: float = 1.0
) -> Iterator[tuple[float, np.ndarray]]:
    """Each innermost kind's share of the headline, and the values of its prompts."""
    if not columns:
        yield weight, np.asarray(prompt_means(key, rows))
        return
    kinds: dict[str, list[SampleLine]] = {}
    for row in rows:
        kinds.setdefault(kind_of_row(row, columns[0]), []).append(row)
    kinds = {kind: own for kind, own in kinds.items() if prompt_means(key, own)}
    for own in kinds.values():
        yield from leaves(columns[1:], key, own, weight / len(kinds))


def suite_figures(suite: Suite) -> list[SampleFigure]:
    """The suite's figures of a sample, by the names that it gives them."""
    return [
        SampleFigure(name, "reward", partial(value_of, key=key), unread_by(key))
        if isinstance(key, str)
        else SampleFigure(name, "reward", partial(value_of_points, key), unread_by(OF_JUDGE))
        for name, key in suite.figures.items()
    ]


def value_of_points(kinds: Sequence[str], row: SampleLine) -> float:
    """The mean over kinds of the share of a sample's points that are right; NaN where none was judged."""
    sums = np.array([point_sums(kind, [row]) for kind in kinds])
    return float(mean_share(sums[None])[0]) if sums[:, 1].any() else math.nan


def prompt_means(key: str, rows: Sequence[SampleLine]) -> list[float]:
    """A reward, or a part of it, of every prompt that has it; samples of a prompt are averaged."""
    means = [mean(value_of(row, key) for row in own) for own in by_task(rows).values()]
    return [value for value in means if math.isfinite(value)]


def unread(key: str, rows: Sequence[SampleLine]) -> float:
    return mean(map(unread_by(key), rows))
