"""`mmrl report`, `watch` and `compare`: looking at runs."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from mmrl.app.cli.arguments import RunFolder
from mmrl.app.commands.options import AsJson

Answers = Annotated[
    Path, Argument(metavar="RUN|EVALUATION", help="A run's folder, or the folder or predictions.jsonl of `mmrl eval`.")
]


def report(run: RunFolder, as_json: AsJson = False) -> None:
    """Write the run's report.html: one file, no network."""
    if as_json:
        from mmrl.app.files import json_text
        from mmrl.app.report.data import facts, load

        typer.echo(json_text(facts(load(run))))
        return
    from mmrl.app.report.page import write_report

    typer.echo(write_report(run))


def watch(
    run: RunFolder,
    port: Annotated[int, Option(min=0, max=65535, help="Port of this machine; 0 takes a free one.")] = 8600,
) -> None:
    """Follow a run in the browser while it trains: curves, newest samples, warnings, time; buttons to stop and to save.

    The page is for this machine alone; from elsewhere it is reached by the ssh line that is printed.
    """
    from mmrl.app.watch.server import watch as look_on

    look_on(run, port)


def compare(
    first: Answers,
    second: Answers,
    html: Annotated[Path | None, Option(metavar="FILE", help="Also write the comparison as an HTML file, with curves.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs or evaluations: settings that differ, and numbers on the same prompts with a sign test."""
    from mmrl.app.errors import Terminal
    from mmrl.app.evaluation import compare as comparing
    from mmrl.app.evaluation.compare import print_comparison
    from mmrl.app.files import json_text

    comparison = comparing.compare(first, second)
    if as_json:
        typer.echo(json_text(comparison.facts()))
    else:
        print_comparison(comparison, Terminal(markup=True))
    if html is not None:
        typer.echo(comparing.write_comparison(comparison, html), err=True)
