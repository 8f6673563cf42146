"""`mmrl data`: check, convert, split and filter data sets; loads no torch."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from mmrl.app.cli.arguments import with_options
from mmrl.app.commands.help import InOrder
from mmrl.app.commands.options import CheckOptions, ConvertOptions, ImageRoot, Overrides, SplitOptions
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
    from mmrl.app.chain.mine import filter_data

    miner = Difficulty(samples, success_at=success_at, low=low, high=high)
    typer.echo(filter_data(config, file, overrides or [], miner, image_root))
