"""YOLO's folders: a text file per picture with a line per box, and the names of the classes in data.yaml or classes.txt.

    images/train/1.jpg   labels/train/1.txt     "0 0.5 0.5 0.25 0.5": class, centre, width and height, shares of the picture
    train/images/1.jpg   train/labels/1.txt     data.yaml: "names: [cat, dog]"

Outlines ("0 x1 y1 x2 y2 ..") give the box around them. With `kpt_shape: [3, 2]` in data.yaml keypoints follow each box; these,
and a tracker's number of the object at the end, are not read. A folder called train, val, valid or test is the row's split.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mmrl.data.files.paths import path_below
from mmrl.data.files.pictures import PICTURE_SUFFIXES
from mmrl.data.layouts.annotations.coco import QUESTION, Record, rows_by_label
from mmrl.data.layouts.base import Look
from mmrl.data.layouts.files import SPLITS, YAML, is_paired
from mmrl.data.readers import Cell, Row, read_text
from mmrl.data.validate import Report

LABELS, PICTURES, CLASSES = "labels", "images", "classes.txt"
_SLACK = 0.01
"""Share of a picture by which boxes may stick out; they are cut at its edge."""
_LONGEST = 2**18
"""Bytes of a file with the names of classes."""
_DEEPEST = 100
"""Levels of its lists and objects."""
Looks = tuple[int, int] | None
_OPENS, _CLOSES = ("<block sequence start>", "<block mapping start>", "[", "{"), ("<block end>", "]", "}")
"""Tokens of YAML."""


@dataclass(frozen=True)
class Classes:
    """The names of the classes and the numbers of a line's keypoints: `Classes(["cat"], 6)`."""

    names: list[str]
    keypoints: int | None = None
    """None: nothing says whether numbers behind the fourth are keypoints or an outline; 0: an outline."""
    tracked: bool = False
    """Do lines end with a tracker's number of the object?"""


def has_labels(look: Look) -> bool:
    """Is it a folder with `labels`, one of labels next to their pictures, or the data.yaml of such a folder?"""
    folder = look.path if look.path.is_dir() else look.path.parent
    if not look.path.is_dir() and look.path.suffix.lower() not in YAML:
        return False
    there = (folder / LABELS).is_dir() or any(folder.glob(f"*/{LABELS}/")) or (folder / CLASSES).is_file()
    return there or is_paired(folder, by_labels=True)


def yolo_rows(path: Path, report: Report, question: str = QUESTION) -> Iterator[Row]:
    """A row per picture and class, with boxes as shares of the picture; ValueError without the names of the classes."""
    folder = path if path.is_dir() else path.parent
    files = label_files(folder)
    classes = classes_of(path)
    classes = replace(classes, tracked=not classes.keypoints and any(is_tracked(folder, file) for file in files))
    looks, named = Counter[Looks](), set[Path]()
    for file in files:
        place = file.relative_to(folder)
        named.add(folder / _picture_of(folder, place))
        boxes: list[tuple[str, list[float]]] = []
        with report.collecting(f"{place}:1", counts=True):
            lines = read_text(Path(path_below(folder, str(place), "data.path"))).splitlines()
            for number, line in enumerate(lines, start=1):
                with report.collecting(f"{place}:{number}", counts=True):
                    words = line.split()
                    boxes += [_box(words, classes, report, looks)] if words else []
        report.notes.update([] if boxes else ["pictures left out: no boxes"])
        split = next((part for part in place.parts[:-1] if part in SPLITS), None)
        shown: Record = {"id": str(place.with_suffix("")), "image": _picture_of(folder, place), "space": "norm1"}
        for values in rows_by_label(shown | ({} if split is None else {"split": split}), boxes, question):
            yield Row(values, str(place), 1)
    pictures = {one for at in {one.parent for one in named} for one in at.glob("*") if one.suffix.lower() in PICTURE_SUFFIXES}
    report.notes.update({"pictures left out: no file of labels": len(pictures - named)} if pictures - named else {})
    shape = next(iter(looks)) if len(looks) == 1 else None
    if classes.keypoints is None and shape is not None:
        count, each = shape
        raise ValueError(
            f"all {looks.total()} lines with more than a box may be a box and {count} points inside it: write "
            f"kpt_shape: [{count}, {each}] into data.yaml in {folder} if they are keypoints, or kpt_shape: [0, 0] if outlines"
        )


def label_files(folder: Path) -> list[Path]:
    """The label files of a folder, by path: those in folders called `labels`, else those next to their pictures."""
    found = sorted(file for file in folder.rglob("*.txt") if file.name != CLASSES)
    within = [file for file in found if LABELS in file.relative_to(folder).parts[:-1]]
    return within or [file for file in found if (folder / _picture_of(folder, file.relative_to(folder))).is_file()]


def is_tracked(folder: Path, file: Path) -> bool:
    """Is behind the box (and perhaps its confidence) of any line a whole number that is no share of a picture?"""
    with suppress(OSError, ValueError):
        inside = Path(path_below(folder, str(file.relative_to(folder)), "data.path"))
        lines = map(str.split, read_text(inside).splitlines())
        return any(len(words) in (6, 7) and words[-1].isdecimal() and int(words[-1]) > 1 for words in lines)
    return False


def classes_of(path: Path) -> Classes:
    """The classes by data.yaml or classes.txt; ValueError without their names."""
    folder = path if path.is_dir() else path.parent
    keypoints = None
    for file in [path] if path.is_file() else sorted(file for ending in YAML for file in folder.glob(f"*{ending}")):
        found = _yaml(file)
        if not isinstance(found, dict):
            continue
        keypoints = _keypoints(found["kpt_shape"], file) if "kpt_shape" in found else keypoints
        listed: Cell = found.get("names")
        if isinstance(listed, dict):
            listed = [listed.get(i) for i in range(len(listed))]
        # YAML reads a bare yes or no as true or false
        if isinstance(listed, list) and listed and all(type(name) in (str, int) for name in listed):
            return Classes([str(name) for name in listed], keypoints)
    for file in (folder / CLASSES, folder / LABELS / CLASSES):
        if file.is_file() and (listed := [line.strip() for line in read_text(file).splitlines() if line.strip()]):
            return Classes(listed, keypoints)
    raise ValueError(
        f"{path} holds YOLO's labels without the names of their classes: write {CLASSES} with a name in each line into {folder}, "
        'or data.yaml with names: ["cat", "dog"]'
    )


def _keypoints(shape: Cell, file: Path) -> int:
    """How many numbers of keypoints follow a box, by `kpt_shape`: their count, and 2 or 3 numbers each."""
    if not isinstance(shape, list) or len(shape) != 2 or not all(isinstance(x, int) and 0 <= x <= 1000 for x in shape):
        raise ValueError(f"{file} says kpt_shape: {str(shape)[:80]}: it must be how many keypoints, and 2 or 3 numbers for each")
    return shape[0] * shape[1]


def _yaml(file: Path) -> Cell:
    """The value of a YAML file; ValueError for one that is none, too long, or refers to its own parts, which can unfold."""
    import yaml

    if file.stat().st_size > _LONGEST:
        raise ValueError(f"{file} is longer than {_LONGEST:,} bytes: write only the names of the classes")
    text = read_text(file)
    try:
        depth = 0
        for token in yaml.scan(text):
            if isinstance(token, yaml.AliasToken):
                raise ValueError(f"{file} refers to parts of itself (*name), which is not read: write the names out")
            # deeper ones take quadratic time to scan
            depth += token.id in _OPENS
            depth -= token.id in _CLOSES
            if depth > _DEEPEST:
                raise ValueError(f"{file} is nested deeper than {_DEEPEST} levels: write only the names of the classes")
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{file} is not YAML: {' '.join(str(error).split())[:200]}") from None


def _picture_of(folder: Path, labels: Path) -> str:
    """The path below the folder of the picture that a label file describes; one that ends in .jpg where there is none."""
    parts = list(labels.parts)
    if LABELS in parts[:-1]:
        last = len(parts) - 2 - parts[-2::-1].index(LABELS)
        parts[last] = PICTURES
    found = Path(*parts)
    endings = (ending for suffix in sorted(PICTURE_SUFFIXES) for ending in (suffix, suffix.upper()))
    there = (named for ending in endings if (folder / (named := found.with_suffix(ending))).is_file())
    return next(there, found.with_suffix(".jpg")).as_posix()


def _box(words: list[str], classes: Classes, report: Report, looks: Counter[Looks]) -> tuple[str, list[float]]:
    """The name and the corners of a line; ValueError for a malformed one. A line of more than a box is counted by its looks."""
    try:
        kind, numbers = int(words[0]), [float(word) for word in words[1:]]
    except ValueError:
        kind, numbers = -1, []
    if classes.tracked and len(numbers) in (5, 6) and words[-1].isdecimal():
        numbers.pop()
        report.notes["numbers of tracked objects ignored: lines end with one"] += 1
    looks.update([_points_within(numbers)] if len(numbers) > 5 else [])
    if classes.keypoints and len(numbers) - classes.keypoints in (4, 5):
        del numbers[4 : 4 + classes.keypoints]
    if len(numbers) > 4 and len(numbers) % 2 and 0 <= numbers[-1] <= 1:
        numbers.pop()
        report.notes["confidences ignored: lines of a model's guesses, and none of people, end with one"] += 1
    if kind < 0 or len(numbers) < 4 or len(numbers) % 2 or (classes.keypoints and len(numbers) > 4):
        more = f", and {classes.keypoints} numbers of keypoints as kpt_shape says" if classes.keypoints else ""
        raise ValueError(f"the line {' '.join(words)[:80]!r} must be a class and the centre, width and height of a box{more}")
    if kind >= len(classes.names):
        raise ValueError(f"the line names class {kind}, and there are names for {len(classes.names)} classes: add its name")
    x, y, width, height = numbers[:4]
    box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
    if len(numbers) > 4:
        box = [min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])]
    cut = [min(max(side, 0.0), 1.0) for side in box]
    if not all(abs(a - b) <= _SLACK for a, b in zip(box, cut, strict=True)):
        raise ValueError(
            f"the box {' '.join(words[1:])[:80]} leaves its picture: its numbers must be shares of the picture, 0 to 1"
        )
    return classes.names[kind], [round(side, 6) for side in cut]


def _points_within(numbers: list[float]) -> Looks:
    """The points that follow a box and lie in it, and the numbers of each; None where a line cannot be read so.

    Points at 0 0 are hidden ones.
    """
    x, y, width, height, *rest = numbers
    for each in (3, 2):
        points = [rest[i : i + each] for i in range(0, len(rest) - each + 1, each)]
        shown = [point for point in points if any(point[:2])]
        inside = all(abs(point[0] - x) * 2 <= width + _SLACK and abs(point[1] - y) * 2 <= height + _SLACK for point in shown)
        marked = each == 2 or all(point[-1] in (0, 1, 2) for point in points)
        if len(rest) % each == 0 and min(width, height) > 0 and inside and marked:
            return len(points), each
    return None
