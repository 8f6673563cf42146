"""`mmrl reward`: test, score and serve rewards; loads no torch."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from mmrl.app.cli.arguments import with_options
from mmrl.app.commands.help import InOrder
from mmrl.app.commands.options import RewardTestOptions, ScoreOptions, TrainArguments

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
