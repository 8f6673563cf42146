"""`mmrl engine` and `mmrl cache`: vLLM's own environment, and what else mmrl keeps on this disk; loads no torch."""

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal as size
from typer import Option

from mmrl.engine.venv import (
    RECIPES,
    VERSION,
    WORKER,
    Accelerator,
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
    venvs,
)
from mmrl.runtime.cache import BOUND, bound, cache_folder, entries, remove
from mmrl.runtime.near import did_you_mean

cache = typer.Typer(no_args_is_help=True)


@cache.command("ls")
def cache_ls() -> None:
    """List cached files with sizes and last use, their total and the limit (MMRL_CACHE_GB)."""
    typer.echo(listing())


@cache.command("clear")
def cache_clear(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Names as printed by `mmrl cache ls` (default: all).")
    ] = None,
) -> None:
    """Delete cached files that no running program uses; they are made again when needed."""
    typer.echo(clear(names or []))


def listing() -> str:
    """Name, size and last use of every entry, the latest used first, then the sum and the bound."""
    found = entries()[::-1]
    width = max((len(entry.path.name) for entry in found), default=0)
    lines = [
        f"  {entry.path.name:<{width}}  {size(entry.num_bytes):>9}  used {datetime.fromtimestamp(entry.used):%Y-%m-%d %H:%M}"
        for entry in found
    ]
    most = f"at most {size(bound())} ({BOUND})" if bound() else f"without a bound ({BOUND})"
    total = f"{len(found)} entries, {size(sum(entry.num_bytes for entry in found))}, {most}"
    apart = [f"  {name}  {size(num_bytes)}, not counted: mmrl engine remove" for name, num_bytes in venvs()]
    return "\n".join([f"{cache_folder()}", *lines, *apart, total, "models of the Hugging Face hub are kept by it: hf cache ls"])


def clear(names: Sequence[str]) -> str:
    """Remove the entries of these names, or all; ValueError, and nothing removed, where there is none of a name."""
    found = {entry.path.name: entry for entry in entries()}
    for name in names:
        if name not in found:
            raise ValueError(f"the cache {cache_folder()} holds no {name!r}: {did_you_mean(name, found)}")
    chosen = [found[name] for name in dict.fromkeys(names)] if names else list(found.values())
    removed = remove(chosen)
    left = [entry.path.name for entry in chosen if entry not in removed]
    used = f"; left {', '.join(left)}: a running program uses what is in there" if left else ""
    return f"removed {len(removed)} entries, {size(sum(entry.num_bytes for entry in removed))}{used}"


engine = typer.Typer(no_args_is_help=True)
Folder = Annotated[
    Path | None, Option(metavar="FOLDER", help="Its folder (default: engines/ in mmrl's cache, never deleted to make room).")
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
    kind, free = {"cpu": "a CPU", "cuda": "NVIDIA cards"}[recipe.accelerator], size(disk_free(place))
    about = "" if recipe.measured else " (an estimate, not measured yet)"
    typer.echo(
        f"vLLM {VERSION} for {kind}, in a separate environment: {place}\n"
        f"  {num_packages(recipe.requirements)} packages, {recipe.download_gb:g} GB of download, {recipe.disk_gb:g} GB of disk"
        f" ({free} free), some minutes{about}\n"
        "  mmrl's own environment stays as it is"
    )
    ask("Make it?", yes)
    made = make_venv(place, recipe, lambda text: typer.echo(f"  {text}"))
    typer.echo(f'vLLM {made.version} is ready, {size(num_bytes(place))}: [policy.engine] kind = "vllm" in a config uses it')


@engine.command("status")
def engine_status(folder: Folder = None) -> None:
    """Check that it exists and is complete, and print its version; exit code 2 if it cannot be used."""
    place = (folder or engine_folder()).absolute()
    found = find_venv(place)
    by = f"made by mmrl for {found.accelerator}, Python {found.python}" if found.accelerator else "not made by mmrl"
    lines = [f"{place}", f"  vLLM {found.version}, {by}, {size(num_bytes(place))}"]
    if found.accelerator and found.recipe != RECIPES[found.accelerator].hash:
        lines.append("  another version of mmrl made it: `mmrl engine install` makes it anew")
    typer.echo("\n".join([*lines, f"  servers that others start need on their PYTHONPATH: {WORKER}"]))


@engine.command("remove")
def engine_remove(folder: Folder = None, yes: Yes = False) -> None:
    """Remove it, complete or not; `mmrl engine install` makes it again."""
    place = (folder or engine_folder()).absolute()
    ask(f"Remove {place}?", yes)
    typer.echo(f"removed {place}, {size(remove_venv(place))}")


def ask(question: str, yes: bool) -> None:
    """Ask, and return only after a yes; ValueError if the input is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError("cannot ask for confirmation, because the input is not a terminal: add --yes")
    typer.confirm(question, abort=True)
