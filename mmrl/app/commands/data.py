"""`mmrl data`: from the words of a command line to the functions of mmrl.data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar, get_args

from rich.progress import track

from mmrl.app.commands.options import CheckOptions, ConvertOptions, SplitOptions
from mmrl.app.config.data import data_tables
from mmrl.app.config.plug_ins import read_data
from mmrl.app.config.run import DataConfig, load
from mmrl.app.config.tasks import root_key
from mmrl.app.errors import Terminal
from mmrl.app.plugins.catalog import catalog
from mmrl.app.run.build import look_at
from mmrl.app.toml.reader import check_keys, plain
from mmrl.app.toml.tables import COMMAND_LINE, Table
from mmrl.core.types import Prompt
from mmrl.data.convert import convert_source, source_to_convert
from mmrl.data.grounding import BoxFormat, GroundingLayout
from mmrl.data.layouts import files
from mmrl.data.layouts.base import BOX, BOXES
from mmrl.data.layouts.fix import fix
from mmrl.data.layouts.habits import BoxHabits
from mmrl.data.layouts.load import RowReader, read_prompts
from mmrl.data.layouts.source import Guess, Source, UnknownLayoutError, foreign, guess, open_foreign, open_source
from mmrl.data.layouts.table import NAMES
from mmrl.data.layouts.write import prompt_source
from mmrl.data.questions import Questions
from mmrl.data.split import split_source
from mmrl.data.validate import check as check_prompts

T = TypeVar("T")
BOX_SPACES = ("pixel", "norm1", "norm1000")


def check(source: str, settings: Sequence[str], options: CheckOptions = CheckOptions()) -> str:
    """Read every row and picture of a file or folder, or every prompt of a config's data sets; or write the rows that are right.

    Layouts are recognised by their first rows; `use=NAME` names a data set that is to read the file. `settings` are `key=value`
    for the data set, such as box_format=xywh, columns.box=bbox or videos=clips, or overrides of a config.

    Raises:
        ValueError: listing what is wrong.
    """
    if source.endswith(".toml") or (not Path(source).exists() and source in [one.name for one in catalog("configs")]):
        return _check_config(source, settings)
    if any(setting.startswith("use=") for setting in settings):
        _refuse_options(options, "use=NAME")
        return _check_with(source, settings, options.image_root)
    table = _table(settings, options.image_root)
    columns, split = _columns_and_split(table)
    found = _guess(source, columns, options.layout, split)
    if found is not None and found.data_set not in NAMES:
        _refuse_options(options, f"the layout {found.layout}")
        return _check_with(source, [f"use={found.data_set}", *settings], options.image_root, f"{found}")
    data_set = BOXES if found is None else found.data_set
    opened = open_source(source, data_set, found and found.layout, columns, split, options.turns == "each")
    opened = opened if found is None else replace(opened, guess=found)
    reader, habits = _reader(opened, table, options.boxes)
    if options.fix is not None:
        return f"{source}: {opened.guess}\n{fix(opened, reader, options.fix, habits, show_progress)}"
    return _report_text(opened, reader, source, habits)


def convert_file(source: Path, out: Path, settings: Sequence[str] = (), options: ConvertOptions = ConvertOptions()) -> str:
    """Convert a file or folder; `settings` are columns.KEY=NAME and split=NAME, and ValueError is raised for others.

    Files that are read by another data set than those for boxes and questions are written from its prompts; `settings` are then
    those of the data set.
    """
    table = Table.of({}, COMMAND_LINE, settings)
    columns, split = _columns_and_split(table)
    found = _guess(str(source), columns, options.layout, split)
    if found is not None and found.data_set not in NAMES:
        opened = _source_of_prompts(source, found, settings, options.image_root)
    else:
        check_keys(table.values, ["columns"], (), table)
        opened = source_to_convert(source, options.layout, options.question, columns, split, options.turns == "each")
    return str(convert_source(opened, out, options.image_root, options.copy))


def _source_of_prompts(source: Path, found: Guess, settings: Sequence[str], image_root: Path | None) -> Source:
    prompts = _read_with(str(source), [f"use={found.data_set}", *settings], image_root)
    return prompt_source(source, found, list(prompts))


def _table(settings: Sequence[str], image_root: Path | None, data_set: str = BOXES) -> Table:
    """The settings of a command line, with the folder of pictures as the data set calls it."""
    table = Table.of({}, "default", settings)
    if image_root is not None:
        table.set((root_key(data_set),), str(image_root), COMMAND_LINE)
    return table


def _columns_and_split(table: Table) -> tuple[dict[str, str], str | None]:
    """`columns.KEY=NAME` and `split=NAME` of a command line; the split is taken out of the table."""
    columns = plain(dict[str, str], table.values.get("columns", {}), ("columns",), table)
    split = table.values.pop("split", None)
    return columns, None if split is None else str(split)


def _check_config(source: str, settings: Sequence[str]) -> str:
    resolved = load(source, settings)
    config = resolved.config
    noted: list[str] = []
    named = [*data_tables(config.data, ("data",)), *data_tables(config.evaluation.data, ("evaluation", "data"))]
    for path, data in named:
        name = f"[{'.'.join(path)}] {data.use}"
        report = look_at(read_data(data, path, resolved.table)(), name)
        report.refuse_duplicates()
        report.raise_if_bad()
        noted += [f"{name}: {note}" for note in report.noted]
    return "\n  ".join([f"{source}: {len(named)} data sets checked, nothing wrong", *noted])


def _guess(source: str, columns: Mapping[str, str], name: str | None, split: str | None) -> Guess | None:
    """The file's layout; None for a file without rows, and one with boxes that are called by no known name."""
    try:
        return guess(source, columns, name, split)
    except UnknownLayoutError:
        look = files.look_at(Path(source), columns, split)
        if look.rows and not look.has_one(*BOX):
            raise
        return None


def _report_text(source: Source, reader: RowReader, name: str, habits: BoxHabits | None) -> str:
    """The report of a check without problems; ValueError listing them otherwise."""
    report = read_prompts(str(source.path), source.rows, reader, source.rows_split, watch=show_progress)[1]
    report.note_if_empty()
    report.refuse_duplicates()
    report.source = f"{name} ({source.guess})"
    suspicion = reader.suspicion if isinstance(reader, Questions) else None if habits is None else habits.suspicion
    if suspicion is not None and not report.ok:
        report.source += f"\n  {suspicion}"
    report.raise_if_bad()
    kinds = reader.seen.most_common() if isinstance(reader, Questions) else ()
    lines = [str(report), *(f"{count} answers: {kind}" for kind, count in kinds)]
    return "\n  ".join([*lines, *report.noted, *report.ignored, *([] if suspicion is None else [suspicion])])


def _refuse_options(options: CheckOptions, what: str) -> None:
    given = {"--boxes": options.boxes, "--fix": options.fix, "--turns": options.turns == "each" or None}
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} is for rows with boxes or questions, and not for {what}: leave it out")


def _reader(source: Source, table: Table, boxes: str | None) -> tuple[RowReader, BoxHabits | None]:
    """The reader of a source's rows with the settings of a command line, and what these leave open of how boxes are written."""
    table.values.setdefault("image_root", str(source.root))
    table.values.setdefault("decode", True)
    kind = GroundingLayout if source.guess.data_set == BOXES else Questions
    if boxes is not None and kind is Questions:
        raise ValueError(f"--boxes {boxes} is for rows with boxes, and {source.path} is {source.guess}: leave it out")
    for word in boxes.split(",") if boxes is not None else ():
        key = "box_format" if word in get_args(BoxFormat) else "space" if word in BOX_SPACES else None
        if key is None:
            raise ValueError(f"--boxes {boxes}: say {', '.join([*get_args(BoxFormat), *BOX_SPACES])}, two joined by a comma")
        table.set((key,), word, COMMAND_LINE)
    is_told = not {"box_format", "space"}.isdisjoint(table.values) or source.knows_boxes
    if kind is Questions or not source.is_own:
        table.values.pop("columns", None)
    known = [f.name for f in fields(kind) if f.name not in ("seen", "habits", "notes")]
    check_keys(table.values, known, (), table)
    if kind is Questions:
        return plain(Questions, table.values, (), table), None
    reader = plain(GroundingLayout, table.values, (), table)
    source.check_boxes(reader.space, reader.box_format)
    return reader, None if is_told else reader.habits


def show_progress(rows: Iterable[T]) -> Iterable[T]:
    """The rows, counted on a terminal while they go by."""
    console = Terminal(stderr=True)
    return track(rows, "rows looked at", console=console, transient=True, disable=not console.is_terminal)


def _check_with(source: str, settings: Sequence[str], image_root: Path | None, said: str = "") -> str:
    """Read a file by a data set of ours or yours: `use=charades_sta videos=clips`."""
    prompts = _read_with(source, settings, image_root)
    report = check_prompts(prompts, watch=show_progress)
    report.unused.update(getattr(prompts, "unused", {}))
    name = next(setting for setting in settings if setting.startswith("use=")).removeprefix("use=")
    report.source = f"{source} ({said or f'read by {name}'})"
    report.refuse_duplicates()
    report.raise_if_bad()
    return "\n  ".join([str(report), *report.noted, *report.ignored])


def _read_with(source: str, settings: Sequence[str], image_root: Path | None) -> Iterable[Prompt]:
    """The prompts that the data set of `use=NAME` reads from a file; ValueError for settings that it does not take."""
    name = str(Table.of({}, "default", settings).values["use"])
    table = _table(settings, image_root, name)
    arguments = {key: value for key, value in table.values.items() if key != "use"}
    return read_data(DataConfig(name, {"path": source, **arguments}), (), table)()


def split_by_shares(source: Path, folder: Path, shares: Sequence[str], options: SplitOptions = SplitOptions()) -> list[str]:
    """Split a file into parts given as `train=0.9 test=0.1`; a line that says its layout if it is not ours, and one per part.

    `columns.KEY=NAME` among the shares says how the file calls a column.
    Raises ValueError for shares that are no numbers or do not add up, and a layout that is unknown or not the only one that fits.
    """
    table = Table()
    for share in shares:
        if "=" not in share:
            raise ValueError(f"{share!r} is no part: write NAME=SHARE for each, such as train=0.9 test=0.1")
        table.override(share)
    columns = plain(dict[str, str], table.values.pop("columns", {}), ("columns",), table)
    parts = plain(dict[str, float], table.values, (), table)
    found = foreign(source, options.layout, columns)
    opened = source
    if found is not None:
        is_read = found.data_set in NAMES
        opened = open_foreign(source, found, columns) if is_read else _source_of_prompts(source, found, (), options.image_root)
    written = split_source(opened, folder, parts, options.seed, options.image_root, columns, options.copy)
    return [*([] if found is None else [f"{source}: {found}"]), *map(str, written)]
