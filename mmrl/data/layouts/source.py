"""The layout of a file or folder, guessed from its beginning, and its rows in our words.

`guess("llava.json").layout == "llava"`
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from mmrl.data.layouts.base import ANSWERS, BOX, BOXES, QUESTIONS, DataLayout, Look, rename_columns
from mmrl.data.layouts.files import is_stored, is_whole, look_at, refuse_sounds, rows_of
from mmrl.data.layouts.table import LAYOUTS, NAMES, OWN, OWN_BOXES
from mmrl.data.layouts.turns import each_question
from mmrl.data.readers import Cell, Row
from mmrl.data.validate import Report

NO_COLUMNS: Mapping[str, str] = MappingProxyType({})


class UnknownLayoutError(ValueError):
    """The file has none of the known layouts."""


@dataclass(frozen=True)
class Guess:
    """The layout that a file has, and the data set that reads it: `Guess("llava", "qa_jsonl", "LLaVA's conversations", True)`."""

    layout: str
    data_set: str
    summary: str
    is_guess: bool
    """False if the user named the layout."""

    def __str__(self) -> str:
        how = "guessed, --as NAME says otherwise" if self.is_guess else "as you say"
        return f"read as {self.layout}: {self.summary}; {how}"


def guess(path: str | Path, columns: Mapping[str, str] = NO_COLUMNS, name: str | None = None, split: str | None = None) -> Guess:
    """The layout of a file or folder and the data set that reads it; `columns` are our name -> the file's.

    Raises FileNotFoundError, or ValueError where it is not what its ending says, has none of the layouts or several, or there is
    no layout called `name`.
    """
    layout = None if name is None else layout_called(name)
    # a layout that needs the whole file reads it once, by itself
    look = Look(Path(path)) if layout is not None and layout.read is not None else look_at(Path(path), columns, split)
    layout = layout or choose(look)
    return Guess(layout.name, layout.data_set(look), layout.summary, name is None)


def layout_called(name: str) -> DataLayout:
    """The layout of that name; ValueError listing all where there is none."""
    if name not in LAYOUTS:
        raise ValueError(f"no layout is called {name!r}: choose one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def choose(look: Look, among: Collection[str] = LAYOUTS) -> DataLayout:
    """The one layout that a file may have; ValueError for none or several."""
    fitting = candidates(look, among)
    if len(fitting) > 1:
        names = [layout.name for layout in fitting]
        raise ValueError(
            f"{look.path} may be {' or '.join(names)}: say which, with --as {' or --as '.join(names)} "
            f'(in a config layout = "{names[0]}")'
        )
    if not fitting:
        there = ", ".join(sorted(map(str, look.columns or look.keys))[:12]) or "no rows"
        if look.has("question") and not look.has_one(*BOX, *ANSWERS):
            raise UnknownLayoutError(
                f"{look.path} has questions, and neither boxes nor answers that are called so ({there}): name that column, as in "
                "columns.box=NAME or columns.answer=NAME (the sides of a box in four columns are xmin, ymin, xmax, ymax)"
            )
        raise UnknownLayoutError(
            f"{look.path} has none of the layouts that are known ({there}): call its columns by our names, as in "
            f"columns.question=NAME, or say its layout with --as, one of {', '.join(LAYOUTS)}"
        )
    return fitting[0]


def candidates(look: Look, among: Collection[str] = LAYOUTS) -> list[DataLayout]:
    """The layouts that fit, without those that give way to another one of them."""
    fitting = [layout for name, layout in LAYOUTS.items() if name in among and layout.fits(look)]
    beaten = {name for layout in fitting for name in layout.beats}
    return [layout for layout in fitting if layout.name not in beaten]


loading = logging.getLogger("mmrl.loading")
TASK_OF = {BOXES: "grounding", QUESTIONS: "qa"}
NEEDED = {BOXES: "box", QUESTIONS: "answer"}
"""Data set -> the column without which its files look like another's."""
TURNS = ("conversations", "messages", "prompt")
EVERYWHERE = (*TURNS, "problem", "question", *ANSWERS)
"""Columns that no row leaves out; pictures, options or splits may begin later in a file."""


@dataclass(frozen=True)
class Source:
    """A file or folder and its layout: `open_source("llava.json", "qa_jsonl").rows(report)` gives its rows in our words."""

    path: Path
    layout: DataLayout
    guess: Guess
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Our name -> the file's."""
    split: str | None = None
    """Of a folder with several, the one that is read."""
    rows_split: str | None = None
    """Of a file, the split to which rows must say they belong."""
    each: bool = False
    """True makes a row of each question of a conversation."""

    @property
    def root(self) -> Path:
        """Where the paths of pictures start unless the user says otherwise."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def is_own(self) -> bool:
        return self.layout in OWN.values()

    @property
    def is_stored(self) -> bool:
        """True for a data set of Hugging Face on disk, whose rows are read when they are asked for."""
        return self.layout.is_by_row and is_stored(self.path)

    @property
    def knows_boxes(self) -> bool:
        """True where the layout says itself how its boxes are written."""
        return self.layout.always == BOXES and not self.layout.told

    def check_boxes(self, space: str, box_format: str) -> None:
        """Raise ValueError if the user says how boxes are written though the layout defines it."""
        if self.knows_boxes and (space, box_format) != ("pixel", "xyxy"):
            raise ValueError(
                f"the layout {self.layout.name} knows how its boxes are written: leave space and box_format out, or say layout = "
                f'"{OWN_BOXES.name}" and the columns of question and box'
            )

    def rows(self, report: Report) -> Iterator[Row]:
        """All rows in our words; those that cannot be read or said go into the report."""
        found = (one for row in rows_of(self.path, report, self.split) for one in self._unroll(row))
        return self.layout.rows(self.path, found, report)

    def translate(self, row: Row) -> Iterator[Row]:
        """One row in our words; ValueError, without its place, for one that does not fit the layout."""
        for one in self._unroll(row):
            yield from self.layout.translate(one)

    def say_layout(self) -> None:
        """Print which layout a run guessed, on the terminal of its command."""
        if self.guess.is_guess and not self.is_own:
            what = f"{self.layout.name}: {self.layout.summary}"
            loading.info('%s is read as %s; guessed, layout = "NAME" in its table of the config says otherwise', self.path, what)

    def tell(self, *lines: str) -> None:
        """Print another note on the file, on the terminal of the run's command."""
        for line in lines:
            loading.info("%s: %s", self.path, line)

    def _unroll(self, row: Row) -> Iterator[Row]:
        # grounding rows with columns of other names are read as they are: their errors speak of those
        named = row if self.layout is OWN_BOXES else rename_columns(row, self.columns)
        column = next((name for name in TURNS if isinstance(named.values.get(name), list)), None)
        if self.each and column is not None:
            yield from each_question(named, column)
        else:
            yield named


def open_source(
    path: str | Path,
    data_set: str,
    name: str | None = None,
    columns: Mapping[str, str] | None = None,
    split: str | None = None,
    each: bool = False,
) -> Source:
    """The source that a data set is to read.

    Args:
        path: a file; or a folder with `<split>.jsonl`, a data set of Hugging Face, pictures and metadata.jsonl, or RefCOCO.
        data_set: grounding_jsonl or qa_jsonl; its own layout takes precedence, and is assumed where none is recognised.
        name: the layout, if the user names it.
        columns: our name -> the file's.
        split: of a folder, the one to read; of a file, the one whose rows are read.
        each: make one row per question of a conversation.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: a layout that the data set does not read, several that fit, or a folder that holds nothing to read.
    """
    file, rows_split, columns = Path(path), split, columns or NO_COLUMNS
    if file.is_dir() and split is not None and (file / f"{split}.jsonl").is_file():
        file, split, rows_split = file / f"{split}.jsonl", None, None
    if name is None:
        look = look_at(file, columns, split)
        fitting = candidates(look, NAMES[data_set])
        layout = _choose(look, data_set)
        if not fitting:
            _refuse_other_data(look, data_set)
        if not fitting and file.is_dir() and not look.rows:
            refuse_sounds(file)
            raise ValueError(
                f"{file} is a folder: give split=NAME, to read NAME.jsonl, or a file (or data of Hugging Face, pictures with "
                "metadata.jsonl, RefCOCO's instances.json and refs)"
            )
    else:
        layout = layout_called(name)
    if layout.name not in NAMES[data_set]:
        raise ValueError(f"the data set {data_set} does not read the layout {layout.name}: use {', '.join(NAMES[data_set])}")
    _check_columns(layout, columns)
    if columns and layout is not OWN_BOXES:
        _check_presence(look_at(file, columns, split), columns)
    guessed = Guess(layout.name, data_set, layout.summary, name is None)
    in_folder = file.is_dir() and layout.read is None and split is not None and not is_whole(file)
    return Source(file, layout, guessed, columns, split if in_folder else None, None if in_folder else rows_split, each)


def look_for(look: Look, first: Mapping[str, Cell] | None, data_set: str, columns: Mapping[str, str]) -> Source:
    """The source of a data set that was opened elsewhere, of which the first row is known."""
    seen = Look(look.path, () if first is None else (rename_columns(Row(first, look.path.name, 1), columns).values,))
    layout = _choose(seen, data_set)
    layout = layout if layout.is_by_row else OWN[data_set]
    _check_columns(layout, columns)
    return Source(look.path, layout, Guess(layout.name, data_set, layout.summary, True), columns)


def foreign(path: str | Path, name: str | None = None, columns: Mapping[str, str] = NO_COLUMNS) -> Guess | None:
    """The layout of a file whose rows are not in our words; None where they are, or where no layout is known.

    Arguments and errors are those of `guess`.
    """
    own = {layout.name for layout in OWN.values()}
    if name is None and {layout.name for layout in candidates(look_at(Path(path), columns))} <= own:
        return None
    found = guess(path, columns, name)
    return None if found.layout in own else found


def open_foreign(path: str | Path, found: Guess, columns: Mapping[str, str] = NO_COLUMNS) -> Source:
    """The file as rows in our words; ValueError where these cannot express it, because only one data set reads the layout."""
    if found.data_set not in NAMES:
        raise ValueError(
            f"{path} is {found.layout} ({found.summary}), which only the data set {found.data_set} reads: this command takes "
            f"rows with boxes or with questions and answers, as {', '.join(dict.fromkeys(sum(NAMES.values(), ())))} write them"
        )
    return replace(open_source(path, found.data_set, found.layout, columns), guess=found)


def _choose(look: Look, data_set: str) -> DataLayout:
    """The data set's own layout where that fits, or no other does; else the one that fits."""
    fitting, own = candidates(look, NAMES[data_set]), OWN[data_set]
    return own if own in fitting or not fitting else choose(look, NAMES[data_set])


def _refuse_other_data(look: Look, data_set: str) -> None:
    """Raise ValueError for a file whose layout another data set reads, but not this one."""
    others = [layout for layout in candidates(look) if layout.name not in NAMES[data_set]]
    if others:
        reader = others[0].data_set(look)
        task = f" (--task {TASK_OF[reader]})" if reader in TASK_OF else ""
        raise ValueError(
            f"{look.path} is read as {others[0].name} ({others[0].summary}): that is data for {reader}{task} and not for "
            f"{data_set}, which reads {OWN[data_set].summary}; use {reader}, or name the columns, as in "
            f"columns.{NEEDED[data_set]} = NAME"
        )


def _check_presence(look: Look, columns: Mapping[str, str]) -> None:
    """Raise ValueError for a column named by the user that every row must have and none of the first rows has."""
    for ours, theirs in columns.items() if look.rows else ():
        if ours in EVERYWHERE and not any(ours in row for row in look.rows):
            there = ", ".join(sorted({str(name) for row in look.rows for name in row})[:12])
            raise ValueError(
                f"columns.{ours} is {theirs!r}, which no row at the beginning of {look.path} has ({there}): name another"
            )


def _check_columns(layout: DataLayout, columns: Mapping[str, str]) -> None:
    unknown = sorted(set(columns) - set(layout.columns))
    if unknown and layout is not OWN_BOXES:
        there = f"use {', '.join(layout.columns)}" if layout.columns else "it takes none"
        raise ValueError(f"columns maps {', '.join(unknown)}, which the layout {layout.name} does not have: {there}")
