"""`mmrl cache`: what mmrl keeps on this disk, and how to delete it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from mmrl.engine.venv import venvs
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


def size(num_bytes: int) -> str:
    """`1.2 MB`."""
    value, units = float(num_bytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}"
