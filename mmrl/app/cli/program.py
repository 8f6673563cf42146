"""The command `mmrl`. Every command calls one function, imported when it runs, so `--help` and `ls` load no torch."""

import logging
import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from mmrl.app.cli.groups import data, environment, reward
from mmrl.app.commands.help import InOrder, complete_config, complete_name
from mmrl.app.commands.kept import cache, engine
from mmrl.app.commands.options import (
    AsJson,
    Card,
    EvalArguments,
    ExportOptions,
    LaunchArguments,
    Overrides,
    PlanArguments,
    RunFolder,
    SampleOptions,
    TrainArguments,
    with_options,
)
from mmrl.app.errors import (
    TRACEBACK,
    StoppedExit,
    Terminal,
    is_for_people,
    leave_loudly,
    leave_now,
    printable,
    protect_streams,
    sentence,
    start,
)
from mmrl.app.files import json_text
from mmrl.app.plugins.lab import add_verbs
from mmrl.runtime.blame import know_ctrl_c

Answers = Annotated[
    Path, Argument(metavar="RUN|EVALUATION", help="A run's folder, or the folder or predictions.jsonl of `mmrl eval`.")
]

Step = Annotated[
    int | None, Option(min=0, help="This checkpoint instead of the newest; 0 is the model before training, to compare with.")
]


def report(run: RunFolder, as_json: AsJson = False) -> None:
    """Write the run's report.html: one file, no network."""
    if as_json:
        from mmrl.app.report.data import facts, load

        return typer.echo(json_text(facts(load(run))))
    from mmrl.app.report.page import write_report

    typer.echo(write_report(run))


def watch(
    run: RunFolder, port: Annotated[int, Option(min=0, max=65535, help="Port of this machine; 0 takes a free one.")] = 8600
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
    from mmrl.app.evaluation import compare as comparing

    comparison = comparing.compare(first, second)
    if as_json:
        typer.echo(json_text(comparison.facts()))
    else:
        comparing.print_comparison(comparison, Terminal(markup=True))
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
    from mmrl.app.one_prompt import ask as ask_one
    from mmrl.app.run.revive import step_words

    found = ask_one(run, words, step, out)
    if as_json:
        return typer.echo(json_text(found))
    typer.echo(printable(f"{step_words(int(str(found['step'])))}: {found['answer'] or '(nothing)'}"))
    if found["truncated"]:
        typer.echo("cut at the length limit (policy.sampling.max_new_tokens)", err=True)
    if found["file"] is not None:
        typer.echo(f"boxes: {found['file']}")
    elif out is not None:
        typer.echo(f"{out} is not written: the answer has no box that can be drawn into a picture", err=True)


app = typer.Typer(cls=InOrder, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")
app.add_typer(data, name="data", help="Check, convert, split and filter data sets.")
app.add_typer(cache, cls=InOrder, name="cache", help="List and clear the tiny models and clips that mmrl keeps.")
app.add_typer(engine, cls=InOrder, name="engine", help="Install vLLM in a separate environment, to sample rollouts with it.")
app.add_typer(reward, name="reward", help="Test, serve and try out rewards.")
app.add_typer(environment, name="environment", help="Test and play environments.")

ConfigName = Annotated[
    str, Argument(metavar="CONFIG", help="A TOML file or a name from `mmrl ls configs`.", autocompletion=complete_config)
]
WITH_MODELS = {"train", "eval", "check", "plan", "demo", "sample", "export", "arena", "draw", "ask"}
"""Commands that import the large libraries, which takes seconds."""
KIND_HELP = "rewards, datasets, environments, algorithms, configs (by default), parts, samplers, generators or families."


def main() -> None:
    """Run the command; an error that is not a bug of mmrl becomes one sentence on stderr and exit code 2."""
    protect_streams()
    know_ctrl_c()
    if "--traceback" in sys.argv:
        sys.argv.remove("--traceback")
        os.environ[TRACEBACK] = "1"
    print_loading()
    # peft asks transformers by a name that transformers has renamed, which is news for their developers
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
    refuse_one_dash(sys.argv[1:])
    if sys.stderr.isatty() and WITH_MODELS & {*sys.argv[1:2]}:
        start.begin()
    try:
        app()
    except StoppedExit:
        leave_now(0)
    except BaseException as error:  # noqa: BLE001 - bugs are raised again
        if not is_for_people(error):
            leave_loudly(error)
        typer.secho(f"mmrl: {sentence(error)}", fg=typer.colors.RED, err=True)
        sys.exit(2)


def refuse_one_dash(words: Sequence[str]) -> None:
    """Report an option with one dash instead of two; no option is a single letter."""
    for word in words:
        if word == "--":
            return
        if re.fullmatch(r"-[a-z][a-z-]+(=.*)?", word):
            typer.secho(f"mmrl: {printable(word)} begins with one dash: write -{printable(word)}", fg=typer.colors.RED, err=True)
            sys.exit(2)


def print_loading() -> None:
    """Print on stderr what is loading, so that the terminal is never silent; with several processes only the first prints."""
    loading = logging.getLogger("mmrl.loading")
    loading.setLevel(logging.INFO)
    loading.propagate = False
    loading.handlers = [logging.StreamHandler() if os.environ.get("RANK", "0") == "0" else logging.NullHandler()]


def print_version(wanted: bool) -> bool:
    if wanted:
        from mmrl import __version__

        typer.echo(f"mmrl {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def mmrl(
    version: Annotated[
        bool, Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    traceback: Annotated[bool, Option("--traceback", help=f"Show where an error happened (also {TRACEBACK}=1).")] = False,
) -> None:
    """Group-relative RL fine-tuning of vision-language models, video LLMs and image generators.

    Start with [bold]mmrl demo grounding[/bold], then look at [bold]mmrl ls[/bold] and [bold]mmrl show grpo[/bold].
    From Python: [bold]mmrl.fit[/bold].
    """


@app.command()
@with_options
def train(given: TrainArguments) -> None:
    """Train a model: from a config, or in one line with --task, --model, --data and --reward."""
    from mmrl.app.commands.train import train as run_train

    run_train(given)


@app.command()
@with_options
def launch(given: LaunchArguments) -> None:
    """Start the trainers and servers that a config describes; for several nodes, print a Slurm batch script."""
    from mmrl.app.commands.launch import launch as run_launch

    raise typer.Exit(run_launch(given))


@app.command()
def alternate(duet: Annotated[Path, Argument(metavar="DUET", help="A TOML file with `turns` and two tables `player`.")]) -> None:
    """Train runs that use each other, such as a writer and its painter, in turns; given again, it goes on where it ended."""
    from mmrl.app.commands.alternate import alternate as run_alternate

    raise typer.Exit(run_alternate(duet))


@app.command("eval")
@with_options
def evaluate(given: EvalArguments) -> None:
    """Evaluate a model on held-out prompts: writes every sample to predictions.jsonl and prints numbers with intervals."""
    from mmrl.app.evaluation.command import run_evaluation

    run_evaluation(given)


@app.command()
@with_options
def plan(
    given: PlanArguments,
    strict: Annotated[bool, Option("--strict", help="Exit with code 2 if the run does not fit the GPU.")] = False,
) -> None:
    """Count a run's model calls and estimate its memory, without loading weights or training."""
    from mmrl.app.commands.plan import plan as run_plan

    if not run_plan(given) and strict:
        raise typer.Exit(2)


@app.command()
def check(config: ConfigName, overrides: Overrides = None, card: Card = None) -> None:
    """Load everything, sample and score a few prompts, compare ratios, test rewards; exit code 2 if something is wrong.

    Given a run's folder, look instead whether its metrics show samples of old weights.
    """
    from mmrl.app.commands.check import check as run_check

    if not run_check(config, overrides or [], card):
        raise typer.Exit(2)


for _look in (report, watch, compare, draw, ask):
    app.command()(_look)


@app.command()
@with_options
def export(
    options: ExportOptions,
    run: RunFolder,
    folder: Annotated[Path, Argument(metavar="DIR", help="Folder to write to; must be new or empty.")],
    push: Annotated[
        str | None, Option(metavar="OWNER/NAME", help="Also upload it to this repository on the Hugging Face hub.")
    ] = None,
    private: Annotated[bool, Option("--private", help="With --push: make the repository private.")] = False,
) -> None:
    """Write the trained model in the format of transformers, peft or diffusers, with a model card; --push uploads it."""
    from mmrl.app.export.export import export as write
    from mmrl.app.export.export import export_and_push

    typer.echo(export_and_push(lambda: write(run, folder, **vars(options)), push, private))


@app.command()
@with_options
def sample(options: SampleOptions, run: RunFolder) -> None:
    """Sample a prompt again and compare the result with what the run recorded; exit code 2 if they differ."""
    from mmrl.app.commands.sample import resample

    found = resample(run, options)
    typer.echo(printable(found.text))
    if found.differs:
        raise typer.Exit(2)


@app.command()
def ls(
    kind: Annotated[str | None, Argument(metavar="[KIND]", help=KIND_HELP)] = None,
    everything: Annotated[bool, Option("--all", help="Of families: all types of transformers that see or hear.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what is available, shipped with mmrl or yours; `mmrl ls rewards` also says what each reward needs and returns."""
    from mmrl.app.inspect.ls import listing, things

    if as_json:
        return typer.echo(json_text(things(kind)))
    for line in listing(kind, everything):
        typer.secho(printable(line), bold=not line.startswith(" ") and kind is None)


@app.command()
def show(
    name: Annotated[
        str,
        Argument(metavar="NAME|CONFIG", help="A name from `mmrl ls`, or a TOML or Python file.", autocompletion=complete_name),
    ],
    overrides: Overrides = None,
    everything: Annotated[bool, Option("--all", help="Also show options that the config does not set.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print details of a name: a config or algorithm with every value; a reward, data set or part with its settings; a metric."""
    from mmrl.app.inspect.show import description, facts

    if as_json:
        return typer.echo(json_text(facts(name, overrides or [], everything)))
    typer.echo(printable(description(name, overrides or [], everything)))


@app.command()
def cp(
    thing: Annotated[
        str, Argument(metavar="THING", help="rewards/iou, datasets/grounding_jsonl, configs/tiny/image, or the name alone.")
    ],
    file: Annotated[Path, Argument(metavar="FILE", help="The new file; must not exist.")],
) -> None:
    """Copy a shipped reward, data set or config, so that you can change it."""
    from mmrl.app.plugins.catalog import copy

    typer.echo(copy(thing, file))


@app.command()
def doctor() -> None:
    """Print versions, devices, memory, disk space, which extras are installed or how to install them, and what is broken."""
    from mmrl.app.commands.doctor import diagnosis

    typer.echo(diagnosis())


add_verbs(app)
