"""`mmrl data`, `mmrl environment` and `mmrl reward`; loads no torch."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from mmrl.app.commands.help import InOrder
from mmrl.app.commands.options import (
    CheckOptions,
    ConvertOptions,
    EnvironmentOptions,
    ImageRoot,
    Overrides,
    RewardTestOptions,
    ScoreOptions,
    SplitOptions,
    TrainArguments,
    with_options,
)
from mmrl.app.errors import printable

data = typer.Typer(cls=InOrder, no_args_is_help=True, rich_markup_mode="rich")


@data.command("check")
@with_options
def data_check(
    options: CheckOptions,
    source: Annotated[str, Argument(metavar="FILE|CONFIG", help="A file or folder with data, or a config.toml.")],
    settings: Annotated[
        list[str] | None, Argument(metavar="[KEY=VALUE]...", help="How to read a file, such as box_format=xywh columns.box=bbox")
    ] = None,
) -> None:
    """Check every row and picture, and list problems by file and line; exit code 2 if there are any.

    The layout is guessed from the first rows and printed.
    """
    from mmrl.app.commands.data import check

    typer.echo(printable(check(source, settings or [], options)))


@data.command("convert")
@with_options
def data_convert(
    options: ConvertOptions,
    source: Annotated[Path, Argument(help="A file or folder: COCO's instances JSON, RefCOCO's folder, messages, parquet, ..")],
    file: Annotated[Path, Argument(metavar="FILE", help="The JSONL file to write.")],
    settings: Annotated[list[str] | None, Argument(metavar="[KEY=VALUE]...", help="columns.KEY=NAME, split=NAME.")] = None,
) -> None:
    """Convert other layouts to JSONL with boxes in pixels, or with questions and answers."""
    from mmrl.app.commands.data import convert_file

    typer.echo(printable(convert_file(source, file, settings or [], options)))


@data.command("split")
@with_options
def data_split(
    options: SplitOptions,
    source: Annotated[Path, Argument(help="A JSONL, JSON or parquet file, or a file or folder of another layout.")],
    folder: Annotated[Path, Argument(metavar="DIR", help="Where to write one JSONL file per part.")],
    shares: Annotated[list[str], Argument(metavar="NAME=SHARE...", help="For example train=0.9 test=0.1")],
) -> None:
    """Split a file into parts that share no picture and no clip.

    Other layouts are recognized, and written as JSONL with mmrl's keys.
    """
    from mmrl.app.commands.data import split_by_shares

    for line in split_by_shares(source, folder, shares, options):
        typer.echo(printable(line))


@data.command("filter")
def data_filter(
    config: Annotated[str, Argument(metavar="CONFIG", help="The config that names the policy, the rewards and the data.")],
    file: Annotated[Path, Argument(metavar="FILE", help="The JSONL file to write.")],
    overrides: Overrides = None,
    samples: Annotated[int, Option(help="Completions per prompt.")] = 8,
    low: Annotated[float, Option(help="Drop prompts that the model gets right less often than this.")] = 0.1,
    high: Annotated[float, Option(help="Drop prompts that the model gets right more often than this.")] = 0.9,
    success_at: Annotated[float, Option(help="A completion is right if its total reward is at least this.")] = 0.5,
    image_root: ImageRoot = None,
) -> None:
    """Keep the prompts that the starting model gets right sometimes: those it can learn from.

    The config's data may have any layout; it is written with mmrl's keys.
    """
    from mmrl.algorithms.miners import Difficulty
    from mmrl.app.chain.rows import filter_data

    miner = Difficulty(samples, success_at=success_at, low=low, high=high)
    typer.echo(filter_data(config, file, overrides or [], miner, image_root))


environment = typer.Typer(cls=InOrder, no_args_is_help=True, rich_markup_mode="rich")


@environment.callback()
def environments() -> None:
    """Try environments before you train in them."""


@environment.command("test")
@with_options
def environment_test(
    options: EnvironmentOptions,
    target: Annotated[str, Argument(metavar="ENVIRONMENT", help="A name from `mmrl ls environments`, or ./file.py[:Name].")],
    settings: Annotated[
        list[str] | None,
        Argument(metavar="[KEY=VALUE]...", help="Its settings, limits and call, such as limits.turns=3 call.where=process."),
    ] = None,
    play: Annotated[
        Path | None, Option(metavar="DIR", help="Play one episode by hand; pictures are written to this folder.")
    ] = None,
) -> None:
    """Open worlds without a model: do they repeat, how fast are they, what do they show? Exit code 2 for a fault."""
    from mmrl.app.commands.environment import play_by_hand, test

    if play is not None:
        play_by_hand(target, settings or [], play, options)
    elif not test(target, settings or [], options):
        raise typer.Exit(2)


reward = typer.Typer(cls=InOrder, no_args_is_help=True, rich_markup_mode="rich")
Settings = Annotated[
    list[str] | None,
    Argument(metavar="[KEY=VALUE]...", help="The reward's own settings, such as threshold=0.5; with a config, overrides."),
]


@reward.command("test")
@with_options
def reward_test(
    options: RewardTestOptions,
    target: Annotated[
        str, Argument(metavar="CONFIG|REWARD", help="A config with its rewards, or a reward's name, file or address.")
    ],
    settings: Settings = None,
) -> None:
    """Score right answers, wrong ones, nonsense and empty ones; exit code 2 if the right ones do not win or a fault shows."""
    from mmrl.app.commands.reward import test

    if not test(target, settings or [], options):
        raise typer.Exit(2)


@reward.command("score")
@with_options
def reward_score(
    options: ScoreOptions,
    target: Annotated[str, Argument(metavar="REWARD", help="A reward's name, file or address.")],
    data: Annotated[str, Argument(metavar="DATA", help="A folder of pictures with prompts, or a JSONL file with outputs.")],
    settings: Settings = None,
) -> None:
    """Score existing pictures or completions, to see what a reward prefers before you train on it."""
    from mmrl.app.commands.reward import score

    score(target, settings or [], data, options)


@reward.command("train")
def reward_train(
    model: Annotated[str, Option(help="The model that learns to score: a folder, or a name on the hub.")],
    data: Annotated[str, Option(help="Rows with `chosen` and `rejected`, with two pictures, or with a `rating`.")],
    settings: Settings = None,
    task: Annotated[str, Option(help="scores (pairs of texts), picture_scores (pairs of pictures) or ratings.")] = "scores",
    held_out: Annotated[
        str | None, Option(help="The like of --data that nothing trains on: it is asked how often it agrees.")
    ] = None,
    output: Annotated[Path | None, Option(metavar="DIR", help="The run's folder, which use of a reward then names.")] = None,
    image_root: Annotated[Path | None, Option(metavar="DIR", help="Where paths of pictures start.")] = None,
    card: Annotated[str | None, Option(help="Memory of the card to fit to, such as 24GB (default: this machine's).")] = None,
) -> None:
    """Train a reward model on what people preferred; a config then uses its folder as a reward."""
    from mmrl.app.reward_model.train import train_reward_model

    held = {"held_out": held_out, "image_root": image_root}
    train_reward_model(TrainArguments(settings or [], task, model, data, **held, card=card, output=output))


@reward.command("serve")
def reward_serve(
    spec: Annotated[Path, Argument(metavar="SPEC", help="A TOML file: host, port, limits and a table for each reward.")],
    host: Annotated[str | None, Option(help="Overrides the spec's host (default 127.0.0.1).")] = None,
    port: Annotated[int | None, Option(help="Overrides the spec's port (default 8500).")] = None,
) -> None:
    """Serve rewards over HTTP from a separate environment; a config uses them as http://host:port/name."""
    from mmrl.app.commands.serve import serve

    serve(spec, host, port)
