"""`mmrl engine`: a separate environment for vLLM, in which servers for rollouts run; loads no torch."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from mmrl.app.commands.cache import size
from mmrl.engine.venv import (
    RECIPES,
    VERSION,
    WORKER,
    Accelerator,
    Installation,
    accelerator_here,
    check_place,
    disk_free,
    engine_folder,
    find_venv,
    is_made,
    make_venv,
    num_bytes,
    num_packages,
    remove_venv,
)

engine = typer.Typer(no_args_is_help=True)
Folder = Annotated[
    Path | None,
    Option(metavar="FOLDER", help="Its folder (default: engines/ in mmrl's cache, never deleted to make room)."),
]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]


@engine.command("install")
def engine_install(
    accelerator: Annotated[Accelerator | None, Option(help="What vLLM runs on (default: what this machine has).")] = None,
    folder: Folder = None,
    yes: Yes = False,
) -> None:
    """Make a separate environment for vLLM; first prints what it costs, and asks."""
    place, recipe = (folder or engine_folder()).absolute(), RECIPES[accelerator or accelerator_here()]
    if is_made(place, recipe):
        typer.echo(f"{place} exists already: see `mmrl engine status`")
        return
    check_place(place, recipe)
    typer.echo(cost(place, recipe))
    ask("Make it?", yes)
    made = make_venv(place, recipe, lambda text: typer.echo(f"  {text}"))
    typer.echo(f'vLLM {made.version} is ready, {size(num_bytes(place))}: [policy.engine] kind = "vllm" in a config uses it')


@engine.command("status")
def engine_status(folder: Folder = None) -> None:
    """Check that it exists and is complete, and print its version; exit code 2 if it cannot be used."""
    typer.echo(status((folder or engine_folder()).absolute()))


@engine.command("remove")
def engine_remove(folder: Folder = None, yes: Yes = False) -> None:
    """Remove it, complete or not; `mmrl engine install` makes it again."""
    place = (folder or engine_folder()).absolute()
    ask(f"Remove {place}?", yes)
    typer.echo(f"removed {place}, {size(remove_venv(place))}")


def cost(folder: Path, recipe: Installation) -> str:
    """Say how much download, disk space and time an installation takes."""
    kind = {"cpu": "a CPU", "cuda": "NVIDIA cards"}[recipe.accelerator]
    about = "" if recipe.measured else " (an estimate, not measured yet)"
    return (
        f"vLLM {VERSION} for {kind}, in a separate environment: {folder}\n"
        f"  {num_packages(recipe.requirements)} packages, {recipe.download_gb:g} GB of download, {recipe.disk_gb:g} GB of disk"
        f" ({size(disk_free(folder))} free), some minutes{about}\n"
        "  mmrl's own environment stays as it is"
    )


def ask(question: str, yes: bool) -> None:
    """Ask, and return only after a yes; ValueError if the input is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError("cannot ask for confirmation, because the input is not a terminal: add --yes")
    typer.confirm(question, abort=True)


def status(folder: Path) -> str:
    """Path, version, accelerator, size and what others need who start servers themselves.

    Raises ValueError where the environment is not there, half made, or of another version.
    """
    found = find_venv(folder)
    by = f"made by mmrl for {found.accelerator}, Python {found.python}" if found.accelerator else "not made by mmrl"
    lines = [f"{folder}", f"  vLLM {found.version}, {by}, {size(num_bytes(folder))}"]
    if found.accelerator and found.recipe != RECIPES[found.accelerator].hash:
        lines.append("  another version of mmrl made it: `mmrl engine install` makes it anew")
    lines.append(f"  servers that others start need on their PYTHONPATH: {WORKER}")
    return "\n".join(lines)
