"""`mmrl show`: an algorithm or a run, every value with its range and origin, every part with its file; all that has settings."""

import inspect
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.config.algorithm import PART_SLOTS, Assembly, assemble
from mmrl.app.config.method_facts import changes, costs, needs
from mmrl.app.config.run import algorithm_origin, algorithm_table, load
from mmrl.app.inspect.options import ranges_below, ranges_of_config, unset_rows
from mmrl.app.inspect.things import all_names, things_called
from mmrl.app.plugins.cards import cards
from mmrl.app.plugins.catalog import configs, preset_documents
from mmrl.app.toml.did_you_mean import nearest
from mmrl.app.toml.tables import Table, dotted_key, leaves


def description(name: str, overrides: Sequence[str] = (), everything: bool = False) -> str:
    """All details of `name` as text: a preset, a config by path or name, or a thing with settings.

    `everything` shows of a config also what it does not set. Raises FileNotFoundError for something else, and ValueError where
    it does not resolve, or `everything` or overrides are asked of something that has no use for them.
    """
    documents = preset_documents()
    is_preset = name in documents and not Path(name).is_file()
    is_config = not is_preset and (Path(name).suffix == ".toml" or name in {listed.name for listed in configs()})
    if everything and not is_config:
        raise ValueError(f"--all goes with a config: {name} is none, and is shown whole without it")
    if is_preset:
        return "\n".join(algorithm_lines(name, documents[name], overrides))
    if not is_config:
        return things_lines(name, overrides, documents)
    resolved = load(name, overrides)
    ranges = ranges_of_config(resolved.config)
    rows = [(key, str(value), ranges.get(key, ""), origin) for key, value, origin in resolved.rows()]
    more = ["", "Not set:", "", *columns(unset_rows(resolved))] if everything else []
    return "\n".join([resolved.config.algorithm.label, "", *columns(rows), *more, "", *part_lines(resolved.config.algorithm)])


def things_lines(name: str, overrides: Sequence[str], presets: Iterable[str]) -> str:
    """All things of this name, one below the other.

    Raises FileNotFoundError if there is nothing to show, and ValueError for overrides, which nothing could follow.
    """
    found = things_called(name)
    if not found:
        known = [*presets, *(listed.name for listed in configs()), *all_names()]
        close = nearest(name, known)
        guess = f"did you mean {close!r}? " if close else ""
        raise FileNotFoundError(f"nothing is called {name!r}, and it is no file: {guess}`mmrl ls` and `mmrl ls parts` list names")
    if overrides:
        raise ValueError(
            f"{overrides[0]!r} has no meaning here: {name} is {found[0].kind}; overrides go with an algorithm or a config"
        )
    return "\n\n\n".join("\n".join(thing.lines()) for thing in found)


def algorithm_lines(name: str, document: str, overrides: Sequence[str]) -> Iterator[str]:
    table = Table.of({"algorithm": {"preset": name}}, "asked for", overrides)
    assembly = assemble(table)
    yield assembly.label
    yield ""
    yield document.strip()
    yield ""
    yield from card_lines(name, assembly)
    yield ""
    ranges = dict(ranges_below(assembly.algorithm, ("algorithm",)))
    rows = [
        (key := dotted_key(path), str(value), ranges.get(key, ""), table.origin(path) or algorithm_origin(path, name, table))
        for path, value in leaves({"algorithm": algorithm_table(assembly)})
    ]
    yield from columns(rows)
    yield ""
    yield from part_lines(assembly)


def card_lines(name: str, assembly: Assembly) -> Iterator[str]:
    """The card of a preset, and what it changes, costs and needs, within 80 columns."""
    made = assembly.algorithm
    facts = [("changes", changes(made)), ("costs", costs(made)), ("needs", needs(made))]
    for word, text in [*cards()[name].lines(), *facts]:
        yield from textwrap.wrap(f"{word:<10}{text}", 80, subsequent_indent=" " * 10, break_on_hyphens=False)


def part_lines(assembly: Assembly) -> list[str]:
    """Slot, class, file and line, and the formula of every part."""
    rows = [(slot, type(part).__name__, place(part)) for slot, part in parts(assembly.algorithm)]
    formulas = [(inspect.getdoc(part) or "").split("\n")[0] for _, part in parts(assembly.algorithm)]
    return [line for row, formula in zip(columns(rows), formulas, strict=True) for line in (row, f"    {formula}")]


def parts(algorithm: Algorithm) -> Iterator[tuple[str, object]]:
    """Every part with the name of its slot."""
    for slot in PART_SLOTS:
        value = getattr(algorithm, slot)
        for item in value if isinstance(value, tuple) else (value,):
            part = item[1] if isinstance(item, tuple) else item
            if part is not None:
                yield slot, part


def place(part: Any) -> str:
    """File and line of a part's definition."""
    definition = type(part) if is_dataclass(part) else part
    file = Path(inspect.getsourcefile(definition) or "?")
    base = Path(__file__).resolve().parents[3]
    shortest = file.relative_to(base) if file.is_relative_to(base) else file
    return f"{shortest}:{inspect.getsourcelines(definition)[1]}"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(max(map(len, rows), default=0))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
