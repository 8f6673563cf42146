"""`mmrl data`: from the words of a command line to the functions of mmrl.data."""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

from rich.progress import track

from mmrl.app.config.data import data_tables
from mmrl.app.config.plug_ins import read_data
from mmrl.app.config.run import load
from mmrl.app.errors import Terminal
from mmrl.app.plugins import resolve as plugins
from mmrl.app.run.build import look_at
from mmrl.app.toml.keys import check_keys
from mmrl.app.toml.tables import Table
from mmrl.app.toml.values import plain
from mmrl.data.grounding import Layout, check_file
from mmrl.data.recognise import recognise
from mmrl.data.split import Part, split
from mmrl.data.validate import check as check_prompts

T = TypeVar("T")


def check(source: str, settings: Sequence[str]) -> str:
    """Read every row and picture of a file, or every prompt of a config's data sets.

    Rows with boxes are recognised, and the layouts of the shipped data sets; `use=NAME` names another data set. `settings` are
    `key=value` for a file's Layout, such as box_format=xywh, for the data set, such as videos=clips, or overrides of a config.

    Raises:
        ValueError: listing what is wrong.
    """
    if source.endswith(".toml"):
        resolved = load(source, settings)
        config = resolved.config
        named = [*data_tables(config.data, ("data",)), *data_tables(config.evaluation.data, ("evaluation", "data"))]
        for path, data in named:
            report = look_at(read_data(data, path, resolved.table)(), f"[{'.'.join(path)}] {data.use}")
            report.refuse_duplicates()
            report.raise_if_bad()
        return f"{source}: {len(named)} data sets checked, nothing wrong"
    if any(setting.startswith("use=") for setting in settings):
        return _check_with(source, settings)
    known = recognise(Path(source))
    if known is not None:
        return _check_with(source, [f"use={known}", *settings])
    report = check_file(source, layout(source, settings), watch=show_progress)
    report.raise_if_bad()
    return str(report)


def show_progress(rows: Iterable[T]) -> Iterable[T]:
    """The rows, counted on a terminal while they go by."""
    console = Terminal(stderr=True)
    return track(rows, "rows looked at", console=console, transient=True, disable=not console.is_terminal)


def _check_with(source: str, settings: Sequence[str]) -> str:
    """Read a file by a data set of ours or yours: `use=charades_sta videos=clips`."""
    table = Table.of({"path": source}, "default")
    for assignment in settings:
        table.override(assignment)
    arguments = dict(table.values)
    name = str(arguments.pop("use"))
    reader = plugins.load(name, "datasets")
    check_keys(arguments, [*inspect.signature(reader).parameters], (), table)
    report = check_prompts(reader(**arguments), watch=show_progress)
    report.source = f"{source} (read by {name})"
    report.refuse_duplicates()
    report.raise_if_bad()
    return str(report)


def layout(source: str, settings: Sequence[str]) -> Layout:
    """How a file is to be read; pictures are decoded to their end."""
    table = Table.of({"image_root": str(Path(source).parent), "decode": True}, "default")
    for assignment in settings:
        table.override(assignment)
    check_keys(table.values, [f.name for f in fields(Layout)], (), table)
    return plain(Layout, table.values, (), table)


def split_by_shares(source: Path, folder: Path, shares: Sequence[str], seed: int, image_root: Path | None) -> list[Part]:
    """Split a file into parts given as `train=0.9 test=0.1`.

    Raises:
        ValueError: shares that are no numbers or do not add up.
    """
    table = Table()
    for share in shares:
        table.override(share)
    return split(source, folder, plain(dict[str, float], table.values, (), table), seed, image_root)
