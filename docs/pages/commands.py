"""The command line, and what a run measures."""

from collections.abc import Iterator
from typing import Any

import typer

from docs.pages.lines import cell
from mmrl.app.cli import app
from mmrl.training.metric_names import METRICS


def commands_page() -> Iterator[str]:
    yield "# Commands\n\nEvery command with its options, as in its `--help`.\n"
    command: Any = typer.main.get_command(app)
    yield from command_lines(command, command.context_class(command, info_name="mmrl"))


def command_lines(command: Any, context: Any) -> Iterator[str]:
    """A chapter per command, groups opened."""
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            yield from command_lines(below, below.context_class(below, info_name=name, parent=context))
        return
    yield f"\n## {context.command_path}\n"
    yield cell(command.help or "")
    yield "\n| | default | meaning |\n|---|---|---|"
    for parameter in command.get_params(context):
        if parameter.name == "help":
            continue
        is_option = parameter.param_type_name == "option"
        label = (
            "/".join([*parameter.opts, *parameter.secondary_opts]) if is_option else (parameter.metavar or parameter.name).upper()
        )
        default = parameter.default if is_option and isinstance(parameter.default, str | int | float) else ""
        yield f"| `{label}` | {'required' if parameter.required else cell(str(default))} | {cell(parameter.help or '')} |"
    if command.epilog:
        lines = [line.strip() for line in command.epilog.splitlines() if line.startswith("  ")]
        yield "\n```text\n" + "\n".join(lines) + "\n```"


def metrics_page() -> Iterator[str]:
    yield "# Metrics\n\nNames in `metrics.jsonl`, trackers and reports. `{name}` is a reward, a part of one, or a variant.\n"
    yield "| metric | unit | meaning |\n|---|---|---|"
    for one in METRICS:
        yield f"| `{one.name}` | {one.unit} | {cell(one.meaning)} |"
