"""`mmrl data`: from the words of a command line to the functions of mmrl.data."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from mmrl.app.build import load_prompts
from mmrl.app.config import load
from mmrl.app.parts import check_keys, plain
from mmrl.app.tables import Table
from mmrl.data.grounding import Layout, check_file
from mmrl.data.split import Part, split


def check(source: str, settings: Sequence[str]) -> str:
    """Read every row and picture of a grounding file, or every prompt of a config's data sets.

    `settings` are `key=value` for a file's Layout, such as box_format=xywh, or overrides of a config.

    Raises:
        ValueError: listing what is wrong.
    """
    if source.endswith(".toml"):
        resolved = load(source, settings)
        named = {("data",): resolved.config.data, ("evaluation", "data"): resolved.config.evaluation.data}
        for path, data in named.items():
            if data is not None:
                load_prompts(data, path, resolved.table)
        return f"{source}: {sum(data is not None for data in named.values())} data sets checked, nothing wrong"
    report = check_file(source, layout(source, settings))
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
