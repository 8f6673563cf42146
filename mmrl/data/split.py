"""Splits of a data set that share no picture."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from math import isclose
from pathlib import Path

from mmrl.data.files.paths import path_below, write_jsonl
from mmrl.data.files.pictures import content_hash
from mmrl.data.layouts.base import BOX, DRAWN, MEDIA, PICTURES
from mmrl.data.layouts.files import rows_of
from mmrl.data.layouts.source import Source
from mmrl.data.layouts.write import LineWriter, file_hash, outside_note, plain
from mmrl.data.readers import Cell, Row
from mmrl.data.validate import Report

TEXTS = ("question", "problem", "instruction", *DRAWN)
"""Columns whose text deals out a row that has neither picture nor clip."""


@dataclass(frozen=True)
class Part:
    """A file that a split wrote."""

    path: Path
    num_rows: int
    num_pictures: int
    outside: str | None = None
    """A line on files outside the folder, if there are any."""

    def __str__(self) -> str:
        line = f"{self.path}: {self.num_rows} rows, {self.num_pictures} pictures"
        return line if self.outside is None else f"{line}\n  {self.outside}"


def split_source(
    source: Source | Path,
    out_dir: Path,
    parts: Mapping[str, float],
    seed: int = 0,
    image_root: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    copy: bool = False,
) -> list[Part]:
    """Write `<out_dir>/<part>.jsonl` for every part, all or none; the same call gives the same files.

    Rows in our words stay as they are, but a column `split` says the part; those of other people's layouts are written in our
    words, and pictures that such a file holds itself become files next to the part.

    Pictures, compared by their pixels, are dealt out in an order that only the seed and the pixels decide, until each part
    has its share of the rows; pictures of one row stay together, and rows without any are dealt out by their text. Paths are
    rewritten to start at `out_dir`, or absolute outside it.

    Args:
        source: a source of rows, or the file of rows in our words.
        parts: name -> share, such as {"train": 0.9, "test": 0.1}.
        columns: our name -> the file's, for image.
        copy: bring along the files that rows name, into a folder per part.

    Raises ValueError for shares that do not add up to 1, a name that no file can have, boxes without a picture, or a part that
    would be empty.
    """
    if not parts or any(share <= 0 for share in parts.values()) or not isclose(sum(parts.values()), 1, abs_tol=1e-6):
        said = " ".join(f"{name}={share:g}" for name, share in parts.items()) or "no parts"
        raise ValueError(f"{said}: parts must have shares above 0 that add up to 1, such as train=0.9 test=0.1")
    for name in parts:
        if name in ("", ".", "..") or Path(name).name != name or not name.isprintable():
            raise ValueError(f"a part is named {name!r}, which cannot be the name of a file: use letters and digits")
    if isinstance(source, Path):
        reader = _Reader(source, None, Path(image_root or source.parent), image_root is None, columns or {}, copy)
    else:
        reader = _Reader(source.path, source, Path(image_root or source.root), image_root is None, columns or {}, copy)
    rows = reader.rows()
    bundle_of = _bundles(rows)
    num_rows = Counter(bundle_of[row.keys[0]] for row in rows)
    order = sorted(num_rows, key=lambda bundle: hashlib.sha256(f"{seed}:{bundle}".encode()).digest())
    files, report = dict[Path, list[Mapping[str, object]]](), list[Part]()
    for name, bundles in _deal(order, num_rows, parts).items():
        chosen = [row for row in rows if bundle_of[row.keys[0]] in bundles]
        if not chosen:
            raise ValueError(f"part {name!r} would be empty: {reader.path} has {len(order)} pictures for {len(parts)} parts")
        file = out_dir / f"{name}.jsonl"
        writer = reader.writer(file)
        lines = (reader.line(row, writer) for row in chosen)
        # readers of one split leave out rows of another
        files[file] = [line if line.get("split") is None else {**line, "split": name} for line in lines]
        num_pictures = len({key for row in chosen for key in row.keys if row.cells})
        report.append(Part(file, len(chosen), num_pictures, outside_note(writer.outside, out_dir)))
    write_jsonl(files)
    return report


@dataclass(frozen=True)
class _PictureRow:
    """A row with its pictures' fingerprints, or those of its clips."""

    row: Row
    column: str
    cells: tuple[Cell, ...]
    """Pictures or clips: paths, or in rows of other layouts also the bytes of pictures."""
    keys: tuple[str, ...]
    """Hashes of the pixels, or of a clip's file, one per cell; of a row without either, its text."""


@dataclass(frozen=True)
class _Reader:
    """Looks for the pictures of rows, and hashes each once."""

    path: Path
    source: Source | None
    """None: the rows are in our words."""
    root: Path
    anywhere: bool
    columns: Mapping[str, str]
    copy: bool = False
    hash_of: Callable[[str], str] = field(default_factory=lambda: cache(content_hash))
    file_hash_of: Callable[[str], str] = field(default_factory=lambda: cache(file_hash))

    def rows(self) -> list[_PictureRow]:
        """All rows; ValueError listing those without a picture or clip."""
        report, rows = Report(str(self.path)), list[_PictureRow]()
        for row in rows_of(self.path, report) if self.source is None else self.source.rows(report):
            report.num_rows += 1
            with report.collecting(row.place):
                rows.append(self._row(row))
        report.raise_if_bad()
        return rows

    def writer(self, file: Path) -> LineWriter:
        """Makes the lines of a part."""
        files = MEDIA if self.source is None else self.source.layout.files
        return LineWriter(file, self.root, self.anywhere, self.copy, files)

    def line(self, row: _PictureRow, writer: LineWriter) -> Mapping[str, object]:
        """The row as it is written to a file, with the paths of its pictures as seen from there."""
        if self.source is not None:
            return writer.line(row.row.values)
        moved = [writer.path_of(cell) for cell in row.cells]
        kept = {name: plain(value, name) for name, value in row.row.values.items() if name != row.column}
        was_list = isinstance(row.row.values.get(row.column), list)
        return kept | ({row.column: moved if was_list else moved[0]} if moved else {})

    def _row(self, row: Row) -> _PictureRow:
        filled = [name for name in MEDIA if row.values.get(name) is not None]
        column = (self.columns.get("image") if self.source is None else None) or (filled[0] if filled else "image")
        found: Cell = row.values.get(column)
        texts = [row.values[name] for name in TEXTS if isinstance(row.values.get(name), str)]
        if texts and not filled and not self.columns.get("image") and row.values.keys().isdisjoint(BOX):
            return _PictureRow(row, column, (), (hashlib.sha256(texts[0].encode("utf-8", "replace")).hexdigest(),))
        cells: tuple[Cell, ...] = tuple(found) if isinstance(found, list) else (found,)
        if not cells or not all(isinstance(cell, str | bytes | dict) and cell for cell in cells):
            raise ValueError(
                f"column {column!r} must be the path of a picture, not {str(found)[:80]}: rows with boxes and without picture "
                "cannot be dealt out"
            )
        hash_of = self.file_hash_of if column not in PICTURES else self.hash_of
        pictures = tuple(
            hash_of(path_below(self.root, cell, "image_root", self.anywhere)) if isinstance(cell, str) else content_hash(cell)
            for cell in cells
        )
        return _PictureRow(row, column, cells, pictures)


def _bundles(rows: Sequence[_PictureRow]) -> dict[str, str]:
    """Picture -> the smallest hash among all pictures that rows tie to it."""
    leader: dict[str, str] = {}

    def find(picture: str) -> str:
        while leader.setdefault(picture, picture) != picture:
            picture = leader[picture]
        return picture

    for row in rows:
        leaders = [find(picture) for picture in row.keys]
        for other in leaders:
            leader[other] = min(leaders)
    return {picture: find(picture) for picture in tuple(leader)}


def _deal(order: Sequence[str], num_rows: Mapping[str, int], parts: Mapping[str, float]) -> dict[str, set[str]]:
    """Part -> its bundles, both in order: each part is filled up to its share of the rows, as near as whole bundles allow."""
    dealt = {name: set[str]() for name in parts}
    ends = list(accumulate(share * sum(num_rows.values()) for share in parts.values()))
    names, so_far = list(parts), 0
    for bundle in order:
        middle = so_far + num_rows[bundle] / 2
        place = next((i for i, end in enumerate(ends) if middle <= end), len(ends) - 1)
        dealt[names[place]].add(bundle)
        so_far += num_rows[bundle]
    return dealt
