"""`mmrl report`, `watch`, `compare`, `draw` and `ask`: looking at runs."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from mmrl.app.commands.options import AsJson, RunFolder

Answers = Annotated[
    Path, Argument(metavar="RUN|EVALUATION", help="A run's folder, or the folder or predictions.jsonl of `mmrl eval`.")
]

Step = Annotated[
    int | None, Option(min=0, help="This checkpoint instead of the newest; 0 is the model before training, to compare with.")
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


def draw(
    run: RunFolder,
    prompt: Annotated[str, Argument(metavar="PROMPT", help="What to draw, how to edit the pictures, or how a clip goes on.")],
    image: Annotated[
        list[Path] | None, Option(metavar="PICTURE", help="A picture to edit, or a first frame; may be repeated.")
    ] = None,
    seed: Annotated[
        int | None, Option(min=0, max=2**32 - 1, help="Seed of the noise (default: that of the run's evaluation).")
    ] = None,
    step: Step = None,
    out: Annotated[
        Path | None, Option(metavar="FILE", help="The picture, or the clip as .mp4 (default: in the run's folder tries/).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a prompt with a run's model, by any of its checkpoints: the same seed draws the same noise for all of them."""
    from mmrl.app.files import json_text
    from mmrl.app.one_prompt import draw as draw_one
    from mmrl.app.run.revive import step_words

    found = draw_one(run, prompt, image or [], step, seed, out)
    said = f"{step_words(int(str(found['step'])))}, seed {found['seed']}: {found['file']}"
    typer.echo(json_text(found) if as_json else said)


def ask(
    run: RunFolder,
    words: Annotated[list[str], Argument(metavar="[FILE]... QUESTION", help="Pictures or clips, then the question in quotes.")],
    step: Step = None,
    out: Annotated[
        Path | None,
        Option(metavar="FILE", help="The picture with the boxes of the answer (default: in the run's folder tries/)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a run's model about a picture or clip, by any of its checkpoints; boxes in the answer are drawn into the picture.

    The question is put as the run puts its own: with its system prompt and answer format.
    """
    from mmrl.app.errors import printable
    from mmrl.app.files import json_text
    from mmrl.app.one_prompt import ask as ask_one
    from mmrl.app.run.revive import step_words

    found = ask_one(run, words, step, out)
    if as_json:
        typer.echo(json_text(found))
        return
    typer.echo(printable(f"{step_words(int(str(found['step'])))}: {found['answer'] or '(nothing)'}"))
    if found["truncated"]:
        typer.echo("cut at the length limit (policy.sampling.max_new_tokens)", err=True)
    if found["file"] is not None:
        typer.echo(f"boxes: {found['file']}")
    elif out is not None:
        typer.echo(f"{out} is not written: the answer has no box that can be drawn into a picture", err=True)
