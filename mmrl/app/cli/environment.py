"""`mmrl environment`: try the worlds that answer a model's turns; loads no torch."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from mmrl.app.cli.arguments import with_options
from mmrl.app.commands.help import InOrder
from mmrl.app.commands.options import EnvironmentOptions

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
