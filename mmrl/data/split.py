"""Splits of a data set that share no picture, and searches for rows that occur twice."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import isclose
from pathlib import Path

from mmrl.data.files import path_below, relative_to, write_jsonl
from mmrl.data.pictures import content_hash
from mmrl.data.readers import Row, read_rows
from mmrl.data.validate import Report


@dataclass(frozen=True)
class Part:
    """A file that a split wrote."""

    path: Path
    num_rows: int
    num_pictures: int

    def __str__(self) -> str:
        return f"{self.path}: {self.num_rows} rows, {self.num_pictures} pictures"


@dataclass(frozen=True)
class Duplicates:
    """Places that belong together, for example ("a.jsonl:3", "a.jsonl:9")."""

    pictures: tuple[tuple[str, ...], ...]
    """Rows whose files differ in name but not in pixels; one place per file name."""
    questions: tuple[tuple[str, ...], ...]
    """Rows with equal pictures and the same question."""

    def __str__(self) -> str:
        lines = [f"same picture under several names: {', '.join(places)}" for places in self.pictures]
        lines += [f"same picture and question: {', '.join(places)}" for places in self.questions]
        return "\n".join(lines) or "no duplicates"


@dataclass(frozen=True)
class Overlap:
    """The pictures and questions that two files share."""

    num_pictures: int
    questions: tuple[tuple[str, str], ...]
    """Place in the one, place in the other, of rows with equal pictures and the same question."""

    def __str__(self) -> str:
        lines = [f"{self.num_pictures} pictures and {len(self.questions)} questions in both"]
        return "\n".join([*lines, *(f"  {one} = {other}" for one, other in self.questions[:20])])


def split(
    path: str | Path,
    out_dir: str | Path,
    parts: Mapping[str, float],
    seed: int = 0,
    image_root: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[Part]:
    """Write `<out_dir>/<part>.jsonl` for every part, all or none; the same call gives the same files.

    Pictures, told apart by their pixels, are dealt out in an order that only the seed and the pixels decide, until each part
    has its share of the rows; pictures of one row stay together. Picture paths are rewritten to start at `out_dir`, or absolute
    outside it.

    Args:
        parts: name -> share, such as {"train": 0.9, "test": 0.1}; shares add up to 1.
        columns: our name -> the file's, for image and question.

    Raises:
        ValueError: shares that do not add up, a name for no file, rows without a picture, or a part that would be empty.
    """
    if not parts or any(share <= 0 for share in parts.values()) or not isclose(sum(parts.values()), 1, abs_tol=1e-6):
        raise ValueError(f"parts {dict(parts)} must have shares above 0 that add up to 1")
    for name in parts:
        if name in ("", ".", "..") or Path(name).name != name or not name.isprintable():
            raise ValueError(f"a part is named {name!r}, which cannot be the name of a file: use letters and digits")
    rows, out_dir = _rows_with_pictures(path, image_root, columns), Path(out_dir)
    bundle_of = _bundles(rows)
    num_rows = Counter(bundle_of[row.pictures[0]] for row in rows)
    order = sorted(num_rows, key=lambda bundle: hashlib.sha256(f"{seed}:{bundle}".encode()).digest())
    files, report = dict[Path, list[dict[str, object]]](), list[Part]()
    for name, bundles in _deal(order, num_rows, parts).items():
        chosen = [row for row in rows if bundle_of[row.pictures[0]] in bundles]
        if not chosen:
            raise ValueError(f"part {name!r} would be empty: {path} has {len(order)} pictures for {len(parts)} parts")
        files[out_dir / f"{name}.jsonl"] = [row.row_for(out_dir) for row in chosen]
        num_pictures = len({picture for row in chosen for picture in row.pictures})
        report.append(Part(out_dir / f"{name}.jsonl", len(chosen), num_pictures))
    write_jsonl(files)
    return report


def find_duplicates(
    path: str | Path, image_root: str | Path | None = None, columns: Mapping[str, str] | None = None
) -> Duplicates:
    """Pictures under several names, and questions asked twice of one picture."""
    names: defaultdict[str, dict[str, str]] = defaultdict(dict)
    questions: defaultdict[tuple[tuple[str, ...], str], list[str]] = defaultdict(list)
    for row in _rows_with_pictures(path, image_root, columns):
        for picture, file in zip(row.pictures, row.files, strict=True):
            names[picture].setdefault(file, row.row.place)
        questions[row.pictures, row.question].append(row.row.place)
    return Duplicates(
        tuple(tuple(places.values()) for places in names.values() if len(places) > 1),
        tuple(tuple(places) for places in questions.values() if len(places) > 1),
    )


def find_overlap(
    path: str | Path, other: str | Path, image_root: str | Path | None = None, columns: Mapping[str, str] | None = None
) -> Overlap:
    """Pictures and questions that stand in both files: what a test set must not share with its training set."""
    rows, others = (_rows_with_pictures(file, image_root, columns) for file in (path, other))
    first = {(row.pictures, row.question): row.row.place for row in reversed(rows)}
    shared = [(first[key], row.row.place) for row in others if (key := (row.pictures, row.question)) in first]
    here, there = ({picture for row in some for picture in row.pictures} for some in (rows, others))
    return Overlap(len(here & there), tuple(shared))


@dataclass(frozen=True)
class _PictureRow:
    """A row with its pictures' fingerprints."""

    row: Row
    column: str
    files: tuple[str, ...]
    root: Path
    pictures: tuple[str, ...]
    """Hashes of the pixels, one per file."""
    question: str

    def row_for(self, folder: Path) -> dict[str, object]:
        """The row with its pictures' paths as seen from another folder."""
        moved = [relative_to(file, self.root, folder) for file in self.files]
        was_list = isinstance(self.row.values[self.column], list)
        return {**self.row.values, self.column: moved if was_list else moved[0]}


def _rows_with_pictures(path: str | Path, image_root: str | Path | None, columns: Mapping[str, str] | None) -> list[_PictureRow]:
    path, columns = Path(path), columns or {}
    root, report = Path(image_root) if image_root is not None else path.parent, Report(str(path))
    hash_of, rows = cache(content_hash), list[_PictureRow]()
    for row in read_rows(path, report):
        report.num_rows += 1
        with report.collecting(row.place):
            column = columns.get("image") or ("images" if "images" in row.values else "image")
            found = row.values.get(column)
            listed = found if isinstance(found, list) else [found]
            files = tuple(file for file in listed if isinstance(file, str))
            if any(isinstance(cell, bytes | dict) for cell in listed):
                raise ValueError(
                    f"column {column!r} holds the bytes of pictures, and JSONL holds paths: write the pictures to files first, "
                    "and their paths into the rows"
                )
            if not files or len(files) < len(listed):
                raise ValueError(f"column {column!r} must be the path of a picture, not {found!r}")
            pictures = tuple(hash_of(path_below(root, file, "image_root", image_root is None)) for file in files)
            question = str(row.values.get(columns.get("question", "question")))
            rows.append(_PictureRow(row, column, files, root, pictures, question))
    report.raise_if_bad()
    return rows


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
