"""The numbers of an evaluation with their uncertainty: over all prompts, and by kind of prompt; on a terminal or as TSV."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.markup import escape
from rich.table import Table

from mmrl.app.errors import Terminal
from mmrl.app.report.data import BOX_SIZE, in_order, kind_of_row
from mmrl.app.report.figures import Estimate, estimates
from mmrl.app.report.rows import SampleLine, by_task, mean
from mmrl.app.report.tables import table, write_tsv
from mmrl.app.report.words import number, percent
from mmrl.app.run.folder import Line

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
    found |= {f"{prefix}/{name}": mean(as_float(line.get("parts", {}).get(name)) for line in lines) for name in parts}
    for start, column in (("source", "source"), *((f"by/{column}", column) for column in by)):
        kinds = [kind_of_row(SampleLine(line, None), column) for line in lines]
        for kind in dict.fromkeys(filter(None, kinds)):
            own = [line for line, one in zip(lines, kinds, strict=True) if one == kind]
            found |= rewards_of(own, f"{prefix}/{start}/{kind.replace('/', '|')}", only_answered=True)
    if any(line.get("tokens") is not None for line in lines):
        found[f"{prefix}/completion_length"] = mean(as_float(line.get("tokens")) for line in lines)
    spread = {line["group"]: line["diversity"] for line in lines if line.get("diversity") is not None}
    return found | ({f"{prefix}/diversity": mean(spread.values())} if spread else {})


def rewards_of(lines: Sequence[Line], prefix: str, only_answered: bool = False) -> dict[str, float]:
    """The mean of every reward and of the total."""
    names = dict.fromkeys(name for line in lines for name in line["scores"])
    found = {f"{prefix}/{name}": mean(as_float(line["scores"].get(name)) for line in lines) for name in names}
    found = {name: value for name, value in found.items() if math.isfinite(value) or not only_answered}
    return found | {f"{prefix}/total": mean(as_float(line["total"]) for line in lines)}


def as_float(value: float | int | None) -> float:
    return math.nan if value is None else float(value)


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


def number_table(title: str, found: Sequence[TableNumber]) -> Table:
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
