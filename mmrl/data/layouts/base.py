"""The promise of a layout: how its files look at their beginning, and what their rows say in our words.

Our words are the columns that `mmrl.data.grounding` and `mmrl.data.questions` read: id, image, video, question, answer, options,
kind, box, space, size, split, and system for a text that comes before all turns. Every other column stays as it is.

Keys of a row's objects that nothing reads are named by `mmrl data check`, and those that change what a row means are refused. A
layout lists, by the place of objects inside a row or file, the keys that it knows: {"objects": ("ref", "bbox")} lets
{"objects": {"bbox": [[1, 2, 30, 40]], "width": 640}} be told of as objects.width. The place of the row or file itself is "".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from mmrl.core.samples import IMAGE, KINDS, VIDEO
from mmrl.data.readers import Cell, Row
from mmrl.data.validate import BAD_ROW, Report

Values = Mapping[str, Cell]
"""The columns of a row."""
BOXES, QUESTIONS = "grounding_jsonl", "qa_jsonl"
"""The data sets that train on layouts of other people: on rows with boxes, and on rows with an answer of another kind."""
PICTURES, CLIPS = IMAGE.columns, VIDEO.columns
EDITED = ("mask", "target")
"""Columns of edits that hold pictures as well."""
MEDIA = tuple(name for kind in KINDS.values() for name in kind.columns)
ANSWERS = ("answer", "solution", "ground_truth")
BOX = ("box", "boxes", "bbox")
SPANS = ("span", "spans")
DRAWN = ("prompt", "caption", "text")
"""Columns that hold the prompt of a picture to be drawn; the first non-empty one counts."""
Known = Mapping[str, Sequence[str]]
"""Place -> the keys that are read there."""
Refused = Mapping[str, str]
"""Place and key -> what to do instead: {"messages.tool_calls": "write the call in its content"}."""


@dataclass(frozen=True)
class Look:
    """The beginning of a file or folder: `Look(Path("a.jsonl"), ({"image": "a.png", "question": "where?"},))`."""

    path: Path
    rows: tuple[Values, ...] = ()
    """Its first rows, with columns called as the user says; none where it holds no rows."""
    keys: frozenset[str] = frozenset()
    """The keys of a file that is one JSON object, or the names of the files in a folder."""
    line: str = ""
    """The first line of a .txt file."""

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns that any of the first rows fills."""
        return frozenset(name for row in self.rows for name, value in row.items() if value is not None)

    def has(self, *names: str) -> bool:
        return self.columns >= set(names)

    def has_one(self, *names: str) -> bool:
        return not self.columns.isdisjoint(names)

    def has_text(self, name: str) -> bool:
        """Is the first value of a column a text?"""
        return isinstance(self.example(name), str)

    def has_turns(self, name: str, role: str) -> bool:
        """Does a column hold lists of objects with a key for their role?"""
        found = self.example(name)
        return isinstance(found, list) and bool(found) and isinstance(found[0], dict) and role in found[0]

    def example(self, name: str) -> Cell:
        """The first value of a column; None without one."""
        return next((row[name] for row in self.rows if row.get(name) is not None), None)


@dataclass(frozen=True)
class DataLayout:
    """A layout of files; without `say` and `read`, only the data set of the same name reads it."""

    name: str
    """What `--as` calls it."""
    summary: str
    fits: Callable[[Look], bool]
    columns: tuple[str, ...] = ()
    """The columns it reads, which a user's `columns` may name otherwise; none where they are those of a published format."""
    say: Callable[[Row], Iterable[Row]] | None = None
    """A row in our words; ValueError, without the row's place, for one that does not fit the layout."""
    read: Callable[..., Iterator[Row]] | None = None
    """(path, report) -> all rows in our words, for layouts that need the whole file or folder at once."""
    gather: Callable[..., Iterator[Row]] | None = None
    """(rows, report) -> the rows in our words, for layouts of which several rows make one, or whose losses are counted."""
    asks: bool = False
    """Do these take `question`, the text of a row with {label} in it?"""
    told: bool = False
    """May the user say how its boxes are written, since the layout does not define it?"""
    beats: tuple[str, ...] = ()
    """Layouts that are recognised by fewer columns and give way to this one."""
    files: tuple[str, ...] = MEDIA
    """The columns that hold pictures and clips."""
    always: str | None = None
    """The data set that reads it, if that is known without looking at rows."""
    known: Known = field(default_factory=dict[str, tuple[str, ...]])
    """The keys of a row's objects that `say` reads; one with `read` or `gather` calls `note_unused` itself."""
    refused: Refused = field(default_factory=dict[str, str])

    def data_set(self, look: Look) -> str:
        """The data set that reads the file: the one for boxes if any of the first rows has some, else the one for questions."""
        if self.always is not None or self.say is None:
            return self.always or self.name
        for number, values in enumerate(look.rows, start=1):
            try:
                if any(not row.values.keys().isdisjoint(BOX) for row in self.say(Row(values, look.path.name, number))):
                    return BOXES
            except BAD_ROW:
                continue
        return QUESTIONS

    def rows(self, path: Path, found: Iterable[Row], report: Report) -> Iterator[Row]:
        """The rows in our words; one that cannot be said goes into the report."""
        if self.read is not None:
            yield from self.read(path, report)
        elif self.gather is not None:
            yield from self.gather(found, report)
        else:
            for row in found:
                note_unused(report, row.values, self.known)
                with report.collecting(row.place, counts=True):
                    said = list(self.translate(row))
                    report.notes.update([] if said else ["rows left out: nothing is asked"])
                    yield from said
        report.close_losses()

    @property
    def is_by_row(self) -> bool:
        """Can each of its rows be read without the others?"""
        return self.read is None and self.gather is None

    def asking(self, question: str) -> "DataLayout":
        """The layout with another text of its rows, if they take one."""
        if not self.asks:
            return self
        say, read, gather = (call and partial(call, question=question) for call in (self.say, self.read, self.gather))
        return replace(self, say=say, read=read, gather=gather)

    def translate(self, row: Row) -> Iterable[Row]:
        """A row in our words; ValueError for one that does not fit the layout."""
        refuse_keys(row.values, self.refused)
        return (row,) if self.say is None else self.say(row)


def rename_columns(row: Row, columns: Mapping[str, str]) -> Row:
    """The row with its columns renamed by `columns` (our name -> the file's); a column that already had our name is dropped."""
    if not columns:
        return row
    taken = {*columns.values(), *columns}
    values = {name: value for name, value in row.values.items() if name not in taken}
    values |= {ours: row.values[theirs] for ours, theirs in columns.items() if theirs in row.values}
    return Row(values, row.source, row.number)


def row_like(row: Row, used: Iterable[str], said: Values) -> Row:
    """A row at the same place: what is said in our words, and the columns that were not used for it."""
    names = {*used, *said}
    values = {name: value for name, value in row.values.items() if name not in names}
    return Row({**{name: value for name, value in said.items() if value is not None}, **values}, row.source, row.number)


def drawn_text(row: Row, names: Sequence[str] = DRAWN) -> tuple[str, str]:
    """The first filled one of some columns, and the text of a prompt that it holds; ValueError without a text."""
    column = next((name for name in names if row.values.get(name) is not None), names[0])
    text = row.values.get(column)
    if not isinstance(text, str) or not text.strip():
        there = ", ".join(map(str, row.values)) or "no columns"
        raise ValueError(
            f"column {column} is {'missing' if text is None else repr(text)[:80]}, and must hold the text of the prompt (the row "
            f"has {there}): name another with column = NAME"
        )
    return column, text


def one_of(row: Row, *names: str) -> Cell:
    """The one of several columns that is filled; ValueError where two are, None where none is."""
    found = [name for name in names if row.values.get(name) is not None]
    if len(found) > 1:
        raise ValueError(f"columns {', '.join(found)} say the same twice: rename one, or take columns.{names[0]}={found[-1]}")
    return row.values[found[0]] if found else None


def answers_in(row: Row, names: Sequence[str] = ANSWERS) -> list[str]:
    """The columns of which one may hold the answer: a solution beside it is how one finds it, and stays a column."""
    return [name for name in names if name != "solution" or row.values.get("answer") is None]


def note_unused(report: Report, values: Mapping[str, Cell], known: Known) -> None:
    """Count the keys of a row or file that are at known places and are not known there."""
    for place, keys in known.items():
        report.unused.update(_names(values, place, frozenset(keys)))


def refuse_keys(values: Mapping[str, Cell], refused: Refused) -> None:
    """Raise ValueError for a row with a key that is refused."""
    for place in dict.fromkeys(name.rpartition(".")[0] for name in refused):
        for name in _names(values, place):
            if name in refused:
                raise ValueError(f"the row has {name}: {refused[name]}")


def _names(values: Mapping[str, Cell], place: str, but: frozenset[str] = frozenset()) -> Iterator[str]:
    """The keys of all objects at a place that hold something, each with its place: objects.width."""
    for found in _objects(values, place.split(".") if place else []):
        yield from (f"{place}.{key}" if place else str(key) for key in found if key not in but and found[key] is not None)


def _objects(found: Cell, path: Sequence[str]) -> Iterator[Mapping[str, Cell]]:
    """The objects at the end of a path; what a list holds is at the list's place."""
    if isinstance(found, list):
        for item in found:
            yield from _objects(item, path)
    elif isinstance(found, Mapping) and path:
        yield from _objects(found.get(path[0]), path[1:])
    elif isinstance(found, Mapping):
        yield found
