"""`mmrl data`: check, convert, split and filter data sets; loads no torch."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from mmrl.app.cli.arguments import Copy, ImageRoot, LayoutName
from mmrl.app.commands.help import InOrder
from mmrl.app.commands.options import Overrides
from mmrl.app.errors import printable

data = typer.Typer(cls=InOrder, no_args_is_help=True, rich_markup_mode="rich")
Turns = Annotated[Literal["one", "each"], Option(help="Conversations: one question per row, or a row for each question.")]


@data.command("check")
def data_check(
    source: Annotated[str, Argument(metavar="FILE|CONFIG", help="A file or folder with data, or a config.toml.")],
    settings: Annotated[
        list[str] | None, Argument(metavar="[KEY=VALUE]...", help="How to read a file, such as box_format=xywh columns.box=bbox")
    ] = None,
    layout: LayoutName = None,
    boxes: Annotated[str | None, Option(metavar="FORMAT", help="xywh, norm1, norm1000, or two such as xywh,norm1000.")] = None,
    fix: Annotated[Path | None, Option(metavar="OUT.jsonl", help="Write the good rows, with boxes in pixels.")] = None,
    turns: Turns = "one",
    image_root: ImageRoot = None,
) -> None:
    """Check every row and picture, and list problems by file and line; exit code 2 if there are any.

    The layout is guessed from the first rows and printed.
    """
    from mmrl.app.commands.data import CheckOptions, check

    typer.echo(printable(check(source, settings or [], CheckOptions(layout, boxes, fix, turns == "each", image_root))))


@data.command("convert")
def data_convert(
    source: Annotated[Path, Argument(help="A file or folder: COCO's instances JSON, RefCOCO's folder, messages, parquet, ..")],
    file: Annotated[Path, Argument(metavar="FILE", help="The JSONL file to write.")],
    kind: Annotated[
        str | None, Option("--kind", "--as", metavar="NAME", help="The layout: coco, yolo, llava, .. (default: guessed).")
    ] = None,
    settings: Annotated[list[str] | None, Argument(metavar="[KEY=VALUE]...", help="columns.KEY=NAME, split=NAME.")] = None,
    image_root: ImageRoot = None,
    question: Annotated[
        str, Option(help="COCO, YOLO, VOC, LabelMe: what to ask, with {label} in it.")
    ] = "Locate every {label} in the picture.",
    turns: Turns = "one",
    copy: Copy = False,
) -> None:
    """Convert other layouts to JSONL with boxes in pixels, or with questions and answers."""
    from mmrl.app.commands.data import ConvertOptions, convert_file

    options = ConvertOptions(kind, image_root, question, turns == "each", copy)
    typer.echo(printable(convert_file(source, file, settings or [], options)))


@data.command("split")
def data_split(
    source: Annotated[Path, Argument(help="A JSONL, JSON or parquet file, or a file or folder of another layout.")],
    folder: Annotated[Path, Argument(metavar="DIR", help="Where to write one JSONL file per part.")],
    shares: Annotated[list[str], Argument(metavar="NAME=SHARE...", help="For example train=0.9 test=0.1")],
    seed: Annotated[int, Option(help="Seed of the random split.")] = 0,
    image_root: ImageRoot = None,
    layout: LayoutName = None,
    copy: Copy = False,
) -> None:
    """Split a file into parts that share no picture and no clip.

    Other layouts are recognized, and written as JSONL with mmrl's keys.
    """
    from mmrl.app.commands.data import SplitOptions, split_by_shares

    for line in split_by_shares(source, folder, shares, SplitOptions(seed, image_root, layout, copy)):
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
