"""`mmrl show`: an algorithm or a run, every value with its range and origin, every part with its file; all that has settings."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.config.algorithm import PART_SLOTS, Assembly, algorithm_table, assemble, changes, costs, needs
from mmrl.app.config.run import algorithm_origin, load
from mmrl.app.inspect.settings import Row, ranges_below, ranges_of_config, unset_rows
from mmrl.app.inspect.things import Thing, all_names, first_line, source_of, things_called
from mmrl.app.plugins.cards import cards
from mmrl.app.plugins.catalog import configs, preset_documents
from mmrl.app.toml.tables import Table, dotted_key, leaves
from mmrl.runtime.near import nearest
from mmrl.training.metric_names import METRICS, Metric, metric_of

Shown = tuple[str, object, str, str]
"""Dotted key, value, range and origin of a setting."""


def description(name: str, overrides: Sequence[str] = (), everything: bool = False) -> str:
    """All details of `name` as text: a preset, a config by path or name, a metric, or a thing with settings.

    `everything` shows of a config also what it does not set. Raises FileNotFoundError for something else, and ValueError where
    it does not resolve, or `everything` or overrides are asked of something that has no use for them.
    """
    kind = kind_of(name, everything)
    if kind == "thing":
        return "\n\n\n".join("\n".join(thing.lines()) for thing in found_things(name, overrides))
    if kind == "metric":
        return "\n".join(f"{one.name}: a metric, unit: {one.unit}\n    {one.meaning}" for one in metrics_called(name))
    assembly, rows, unset = settings_shown(kind, name, overrides, everything)
    head: list[str] = []
    if kind == "algorithm":
        card = [f"{word:<10}{text}" for word, text in card_facts(name, assembly)]
        wrapped = [line for text in card for line in textwrap.wrap(text, 80, subsequent_indent=" " * 10, break_on_hyphens=False)]
        head = [preset_documents()[name].strip(), "", *wrapped, ""]
    more = ["", "Not set:", "", *columns(unset)] if everything else []
    own = columns([(key, str(value), words, origin) for key, value, words, origin in rows])
    return "\n".join([assembly.label, "", *head, *own, *more, "", *part_lines(assembly)])


def facts(name: str, overrides: Sequence[str] = (), everything: bool = False) -> list[dict[str, object]]:
    """The same as programs read it, one entry for each thing of this name: `mmrl show --json`. Errors as in `description`."""
    kind = kind_of(name, everything)
    if kind == "thing":
        return [
            {"kind": one.kind, "name": one.name, "file": source_of(one.found), "document": one.document, "settings": one.settings}
            for one in found_things(name, overrides)
        ]
    if kind == "metric":
        return [{"kind": kind, "name": one.name, "unit": one.unit, "document": one.meaning} for one in metrics_called(name)]
    assembly, rows, found = settings_shown(kind, name, overrides, everything)
    more: dict[str, object] = {}
    if kind == "algorithm":
        more = {"document": preset_documents()[name].strip(), "card": dict(card_facts(name, assembly))}
    elif everything:
        more = {"not_set": [{"key": key, "value": value, "origin": origin} for key, value, origin in found]}
    own = [dict(zip(("slot", "kind", "file", "formula"), row, strict=True)) for row in part_rows(assembly)]
    settings = [dict(zip(("key", "value", "range", "origin"), row, strict=True)) for row in rows]
    return [{"kind": kind, "name": name, "label": assembly.label, **more, "settings": settings, "parts": own}]


def kind_of(name: str, everything: bool) -> str:
    """`algorithm`, `config`, `metric` or `thing`; ValueError where `everything` is asked of something other than a config."""
    is_preset = name in preset_documents() and not Path(name).is_file()
    is_config = not is_preset and (Path(name).suffix == ".toml" or name in {listed.name for listed in configs()})
    if everything and not is_config:
        raise ValueError(f"--all goes with a config: {name} is none, and is shown whole without it")
    if is_preset or is_config:
        return "algorithm" if is_preset else "config"
    return "metric" if metrics_called(name) and not things_called(name) else "thing"


def metrics_called(name: str) -> Sequence[Metric]:
    """The metric of this name; all of them for `metrics`."""
    found = metric_of(name)
    return METRICS if name == "metrics" else [] if found is None else [found]


def found_things(name: str, overrides: Sequence[str]) -> list[Thing]:
    """All things of this name.

    Raises FileNotFoundError if there is nothing to show, and ValueError for overrides, which nothing could follow.
    """
    found = things_called(name)
    if not found:
        known = [*preset_documents(), *(listed.name for listed in configs()), *all_names()]
        close = nearest(name, known)
        guess = f"did you mean {close!r}? " if close else ""
        raise FileNotFoundError(f"nothing is called {name!r}, and it is no file: {guess}`mmrl ls` and `mmrl ls parts` list names")
    if overrides:
        raise ValueError(
            f"{overrides[0]!r} has no meaning here: {name} is {found[0].kind}; overrides go with an algorithm or a config"
        )
    return found


def settings_shown(kind: str, name: str, overrides: Sequence[str], everything: bool) -> tuple[Assembly, list[Shown], list[Row]]:
    """The parts of an algorithm or a config, all that it sets, and where asked what it does not set."""
    if kind == "config":
        resolved = load(name, overrides)
        ranges, unset = ranges_of_config(resolved.config), unset_rows(resolved) if everything else []
        rows = [(key, value, ranges.get(key, ""), origin) for key, value, origin in resolved.rows()]
        return resolved.config.algorithm, rows, unset
    table = Table.of({"algorithm": {"preset": name}}, "asked for", overrides)
    assembly = assemble(table)
    ranges = dict(ranges_below(assembly.algorithm, ("algorithm",)))
    rows = [
        (key := dotted_key(path), value, ranges.get(key, ""), table.origin(path) or algorithm_origin(path, name, table))
        for path, value in leaves({"algorithm": algorithm_table(assembly)})
    ]
    return assembly, rows, []


def card_facts(name: str, assembly: Assembly) -> list[tuple[str, str]]:
    """Words of a card and their texts."""
    made = assembly.algorithm
    return [*cards()[name].lines(), ("changes", changes(made)), ("costs", costs(made)), ("needs", needs(made))]


def part_lines(assembly: Assembly) -> list[str]:
    """Two lines for every part, the second one with its formula."""
    rows = part_rows(assembly)
    lines = columns([row[:3] for row in rows])
    return [line for row, line in zip(rows, lines, strict=True) for line in (line, f"    {row[3]}")]


def part_rows(assembly: Assembly) -> list[tuple[str, str, str, str]]:
    """Slot, class, file and line, and the formula of every part."""
    return [
        (slot, type(part).__name__, source_of(type(part) if is_dataclass(part) else part), first_line(part))
        for slot, part in parts(assembly.algorithm)
    ]


def parts(algorithm: Algorithm) -> Iterator[tuple[str, object]]:
    """Every part with the name of its slot."""
    for slot in PART_SLOTS:
        value = getattr(algorithm, slot)
        for item in value if isinstance(value, tuple) else (value,):
            part = item[1] if isinstance(item, tuple) else item
            if part is not None:
                yield slot, part


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(max(map(len, rows), default=0))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
