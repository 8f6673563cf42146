"""The command line, and what a run measures."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import typer

from docs.pages.lines import cell
from mmrl.app.cli import app
from mmrl.training.metric_names import METRICS

COMMON = 2
"""An option that as many verbs have, and explain alike, is explained once."""


class Chapter(NamedTuple):
    """A command: its path, what it does, a row of a table per option by its label, and its examples."""

    path: str
    document: str
    rows: dict[str, str]
    examples: list[str]


def commands_page() -> Iterator[str]:
    command: Any = typer.main.get_command(app)
    chapters = list(chapters_of(command, command.context_class(command, info_name="mmrl")))
    rooms = {(row, one.path.split()[1]) for one in chapters for row in one.rows.values()}
    times = Counter(row for row, _ in rooms)
    shared = {row: None for one in chapters for row in one.rows.values() if times[row] >= COMMON}
    yield "# Commands\n\nEvery command with its options, as in its `--help`. Arguments in brackets may be left out.\n"
    yield "## Options of several commands\n"
    yield from table_lines(shared)
    for (group, rows), some in groupby(chapters, lambda one: (one.path.rpartition(" ")[0], one.rows)):
        alike = list(some)
        if len(alike) == 1:
            yield f"\n## {alike[0].path}\n\n{cell(alike[0].document)}\n"
        else:
            yield f"\n## {group}\n\n| | |\n|---|---|"
            yield from (f"| `{one.path}` | {cell(one.document)} |" for one in alike)
            yield ""
        yield from table_lines(row for row in rows.values() if row not in shared)
        if common := [f"`{label}`" for label, row in rows.items() if row in shared]:
            yield f"\nAlso {', '.join(common)}: see [above](#options-of-several-commands)."
        if examples := [line for one in alike for line in one.examples]:
            yield "\n```text\n" + "\n".join(examples) + "\n```"


def chapters_of(command: Any, context: Any) -> Iterator[Chapter]:
    """What is told of every command, groups opened."""
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            yield from chapters_of(below, below.context_class(below, info_name=name, parent=context))
        return
    rows = dict(row_of(one) for one in command.get_params(context) if one.name != "help")
    examples = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    yield Chapter(context.command_path, command.help or "", rows, examples)


def row_of(parameter: Any) -> tuple[str, str]:
    """The name of an option or argument, and its row of a table; arguments in brackets may be left out."""
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [(parameter.metavar or parameter.name).upper()]
    label, default = "/".join(names), parameter.default
    said = is_option and default is not False and default != "" and isinstance(default, str | int | float)
    note = " Required." if is_option and parameter.required else f" Default: `{default}`." if said else ""
    return label, f"| `{label}` | {cell((parameter.help or '') + note)} |"


def table_lines(rows: Iterable[str]) -> Iterator[str]:
    if found := list(rows):
        yield "| | |\n|---|---|"
        yield from found


def metrics_page() -> Iterator[str]:
    yield "# Metrics\n\nNames in `metrics.jsonl`, trackers and reports. `{name}` is a reward, a part of one, or a variant.\n"
    yield "| metric | unit | meaning |\n|---|---|---|"
    for one in METRICS:
        yield f"| `{one.name}` | {one.unit} | {cell(one.meaning)} |"
