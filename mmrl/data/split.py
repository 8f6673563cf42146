"""Splits of a data set that share no picture."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from math import isclose
from pathlib import Path

from mmrl.data.files.paths import path_below, relative_to, write_jsonl
from mmrl.data.files.pictures import content_hash
from mmrl.data.layouts.base import MEDIA, PICTURES
from mmrl.data.layouts.source import Source, foreign, open_foreign
from mmrl.data.layouts.write import LineWriter
from mmrl.data.readers import Cell, Row, read_rows
from mmrl.data.validate import Report


@dataclass(frozen=True)
class Part:
    """A file that a split wrote."""

    path: Path
    num_rows: int
    num_pictures: int

    def __str__(self) -> str:
        return f"{self.path}: {self.num_rows} rows, {self.num_pictures} pictures"


def split(
    path: str | Path,
    out_dir: str | Path,
    parts: Mapping[str, float],
    seed: int = 0,
    image_root: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    layout: str | None = None,
) -> list[Part]:
    """Write `<out_dir>/<part>.jsonl` for every part, all or none; the same call gives the same files.

    Rows in our words stay as they are; those of other people's layouts are written in our words, and pictures that such a file
    holds itself become files next to the part.

    Pictures, compared by their pixels, are dealt out in an order that only the seed and the pixels decide, until each part
    has its share of the rows; pictures of one row stay together. Picture paths are rewritten to start at `out_dir`, or absolute
    outside it.

    Args:
        parts: name -> share, such as {"train": 0.9, "test": 0.1}.
        columns: our name -> the file's, for image, or for what the layout reads.
        layout: as `mmrl data check` calls it; None: guessed.

    Raises ValueError for shares that do not add up to 1, a name for no file, several layouts that fit, rows without a picture or
    clip, or a part that would be empty.
    """
    if not parts or any(share <= 0 for share in parts.values()) or not isclose(sum(parts.values()), 1, abs_tol=1e-6):
        said = " ".join(f"{name}={share:g}" for name, share in parts.items()) or "no parts"
        raise ValueError(f"{said}: parts must have shares above 0 that add up to 1, such as train=0.9 test=0.1")
    for name in parts:
        if name in ("", ".", "..") or Path(name).name != name or not name.isprintable():
            raise ValueError(f"a part is named {name!r}, which cannot be the name of a file: use letters and digits")
    path, columns, out_dir = Path(path), columns or {}, Path(out_dir)
    found = foreign(path, layout, columns)
    source = None if found is None else open_foreign(path, found, columns)
    root = Path(image_root) if image_root is not None else path.parent if source is None else source.root
    reader = _Reader(path, source, root, image_root is None, columns)
    rows = reader.rows()
    bundle_of = _bundles(rows)
    num_rows = Counter(bundle_of[row.pictures[0]] for row in rows)
    order = sorted(num_rows, key=lambda bundle: hashlib.sha256(f"{seed}:{bundle}".encode()).digest())
    files, report = dict[Path, list[Mapping[str, object]]](), list[Part]()
    for name, bundles in _deal(order, num_rows, parts).items():
        chosen = [row for row in rows if bundle_of[row.pictures[0]] in bundles]
        if not chosen:
            raise ValueError(f"part {name!r} would be empty: {path} has {len(order)} pictures for {len(parts)} parts")
        file = out_dir / f"{name}.jsonl"
        files[file] = [reader.line(row, file) for row in chosen]
        num_pictures = len({picture for row in chosen for picture in row.pictures})
        report.append(Part(file, len(chosen), num_pictures))
    write_jsonl(files)
    return report


@dataclass(frozen=True)
class _PictureRow:
    """A row with its pictures' fingerprints, or those of its clips."""

    row: Row
    column: str
    cells: tuple[Cell, ...]
    """Pictures or clips: paths, or in rows of other layouts also the bytes of pictures."""
    pictures: tuple[str, ...]
    """Hashes of the pixels, or of a clip's file, one per cell."""


@dataclass(frozen=True)
class _Reader:
    """Looks for the pictures of rows, and hashes each once."""

    path: Path
    source: Source | None
    """None: the rows are in our words."""
    root: Path
    anywhere: bool
    columns: Mapping[str, str]
    hash_of: Callable[[str], str] = field(default_factory=lambda: cache(content_hash))
    file_hash_of: Callable[[str], str] = field(default_factory=lambda: cache(file_hash))

    def rows(self) -> list[_PictureRow]:
        """All rows; ValueError listing those without a picture or clip."""
        report, rows = Report(str(self.path)), list[_PictureRow]()
        for row in read_rows(self.path, report) if self.source is None else self.source.rows(report):
            report.num_rows += 1
            with report.collecting(row.place):
                rows.append(self._row(row))
        report.raise_if_bad()
        return rows

    def line(self, row: _PictureRow, file: Path) -> Mapping[str, object]:
        """The row as it is to be in a file, with the paths of its pictures as seen from there."""
        if self.source is not None:
            return LineWriter(file, self.root).line(row.row.values)
        moved = [relative_to(str(cell), self.root, file.parent) for cell in row.cells]
        was_list = isinstance(row.row.values[row.column], list)
        return {**row.row.values, row.column: moved if was_list else moved[0]}

    def _row(self, row: Row) -> _PictureRow:
        filled = [name for name in MEDIA if row.values.get(name) is not None]
        column = (self.columns.get("image") if self.source is None else None) or (filled[0] if filled else "image")
        found: Cell = row.values.get(column)
        cells: tuple[Cell, ...] = tuple(found) if isinstance(found, list) else (found,)
        if self.source is None and any(isinstance(cell, bytes | dict) for cell in cells):
            raise ValueError(
                f"column {column!r} holds the bytes of pictures, and JSONL holds paths: write the pictures to files with "
                "`mmrl data convert`, and split what it wrote"
            )
        is_path = [isinstance(cell, str) and cell != "" for cell in cells]
        if not cells or not all(is_path if self.source is None else (cell is not None and cell != "" for cell in cells)):
            raise ValueError(
                f"column {column!r} must be the path of a picture, not {str(found)[:80]}: rows without picture and clip cannot "
                "be dealt out"
            )
        hash_of = self.file_hash_of if column not in PICTURES else self.hash_of
        pictures = tuple(
            hash_of(path_below(self.root, cell, "image_root", self.anywhere)) if isinstance(cell, str) else content_hash(cell)
            for cell in cells
        )
        return _PictureRow(row, column, cells, pictures)


def file_hash(path: str) -> str:
    """A hash of a file's bytes; FileNotFoundError naming it."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"clip {path} does not exist")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bundles(rows: Sequence[_PictureRow]) -> dict[str, str]:
    """Picture -> the smallest hash among all pictures that rows tie to it."""
    leader: dict[str, str] = {}

    def find(picture: str) -> str:
        while leader.setdefault(picture, picture) != picture:
            picture = leader[picture]
        return picture

    for row in rows:
        leaders = [find(picture) for picture in row.pictures]
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
