"""Label Studio's JSON and JSON-MIN, and LabelMe's: a picture, and what people drew on it; a row per picture and label.

    {"data": {"image": "/data/upload/1/cat.jpg"}, "annotations": [{"result": [{"original_width": 64, "original_height": 48,
     "value": {"x": 5, "y": 5, "width": 20, "height": 30, "rotation": 0, "rectanglelabels": ["cat"]}}]}]}
    {"image": "/data/upload/1/cat.jpg", "label": [{"x": 5, "y": 5, "width": 20, "height": 30, "rectanglelabels": ["cat"], ..}]}

Numbers are percents. Rectangles, turned about their upper left corner, and polygons are boxes; other shapes are left out and
counted. A picture's path starts behind `/data/`, or is what `?d=` says.

LabelMe: a JSON file per picture, next to it; its points, lines and circles are left out and counted, and a folder called train,
val, valid or test is the row's split.

    {"imagePath": "1.jpg", "imageWidth": 64, "imageHeight": 48,
     "shapes": [{"label": "cat", "shape_type": "rectangle", "points": [[4, 4], [20, 20]]}]}
"""

import re
from collections.abc import Iterable, Iterator
from math import cos, radians, sin
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from mmrl.data.files.paths import path_below
from mmrl.data.files.pictures import PICTURE_SUFFIXES
from mmrl.data.layouts.annotations.coco import QUESTION, Record, around, corners, naming_layout, rows_by_label
from mmrl.data.layouts.base import Look, Values, note_unused
from mmrl.data.layouts.files import SPLITS
from mmrl.data.readers import Cell, Row, read_json
from mmrl.data.validate import Report

DRAWN = ("annotations", "completions")
"""The column of what people drew, today and formerly."""
SIZE = ("original_width", "original_height")


def is_label_studio(look: Look) -> bool:
    whole = isinstance(look.example("data"), dict) and look.has_one(*DRAWN)
    return whole or any(_are_results(value) for row in look.rows for value in row.values())


def label_studio_rows(rows: Iterable[Row], report: Report, question: str = QUESTION) -> Iterator[Row]:
    """A row per picture and label, with boxes as corners in pixels; what was left out is counted in `report.notes`."""
    for row in rows:
        with report.collecting(row.place, counts=True), naming_layout(Path(row.source), "label_studio"):
            image = _picture(row.values.get("data") or row.values)
            shown: Record = {"id": str(row.values.get("id", row.number)), "image": image}
            boxes: list[tuple[str, list[float]]] = []
            for number, result in enumerate(_results(row, report), start=1):
                where, drawn = f"{row.place}, result {number}", {**result, **(result.get("value") or {})}
                labels = [str(one) for name, value in drawn.items() if name.endswith("labels") for one in value or ()]
                if not labels or drawn.keys().isdisjoint(("points", "height")):
                    report.leave_out("no rectangle or polygon with a label", where, by_design=True)
                    continue
                size: Record = {"width": drawn[SIZE[0]], "height": drawn[SIZE[1]]}
                box = corners({"bbox": around(_points(drawn), "a shape")}, size, report, where)
                boxes += [(label, box) for label in labels if box is not None]
                shown["size"] = [*size.values()]
            report.notes.update([] if boxes else ["pictures left out: no boxes"])
            yield from (Row(values, row.source, row.number) for values in rows_by_label(shown, boxes, question))


def _are_results(found: Cell) -> bool:
    return isinstance(found, list) and any(isinstance(one, dict) and SIZE[0] in one for one in found)


def _results(row: Row, report: Report) -> list[Record]:
    """The shapes that one person drew; ValueError where several did."""
    if "data" not in row.values:
        return [one for value in row.values.values() if _are_results(value) for one in value]
    drawn = next((row.values[name] for name in DRAWN if row.values.get(name) is not None), [])
    kept = [one for one in drawn if not one.get("was_cancelled")]
    report.notes.update(["annotations left out: cancelled"] * (len(drawn) - len(kept)))
    note_unused(report, row.values, {"": ("id", "data", *DRAWN)})
    if len(kept) > 1:
        raise ValueError(
            f"the picture was annotated {len(kept)} times: keep one of its annotations, or mark others was_cancelled"
        )
    return [result for one in kept for result in one["result"]]


def _points(drawn: Record) -> list[tuple[float, float]]:
    """The corners of a rectangle or polygon in pixels; ValueError for numbers that are none."""
    if drawn.get("image_rotation"):
        raise ValueError(f"the picture was turned by {drawn['image_rotation']} degrees to be annotated: turn its file and boxes")
    pairs = drawn["points"] if "points" in drawn else [[drawn["x"], drawn["y"]], [drawn["width"], drawn["height"]]]
    turn = drawn.get("rotation") or 0
    if not all(isinstance(x, int | float) for pair in [[drawn.get(side) for side in SIZE], [turn], *pairs] for x in pair):
        raise ValueError(f"{str(drawn)[:120]} must hold numbers, and those of its picture's size ({', '.join(SIZE)})")
    scaled = [(x * drawn[SIZE[0]] / 100, y * drawn[SIZE[1]] / 100) for x, y in pairs]
    if "points" in drawn:
        return scaled
    (x, y), (width, height) = scaled
    across, down = cos(radians(turn)), sin(radians(turn))
    sides = [(a * width, b * height) for a in (0, 1) for b in (0, 1)]
    return [(x + a * across - b * down, y + a * down + b * across) for a, b in sides]


def _picture(values: Values) -> str:
    """The path of the task's one picture."""
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    found = [
        text for text in texts.values() if any(Path(part).suffix.lower() in PICTURE_SUFFIXES for part in re.split("[?&]", text))
    ]
    if len(found) != 1:
        raise ValueError(f"a task must name one picture, and this one names {len(found)} ({', '.join(texts)})")
    return parse_qs(urlsplit(found[0]).query).get("d", [found[0].removeprefix("/data/")])[0]


KEYS = {"shapes", "imagePath"}
KNOWN = {"": (*KEYS, "imageWidth", "imageHeight"), "shapes": ("label", "points", "shape_type")}
"""The keys that are read."""
SHAPES = ("rectangle", "polygon", "rotation")


def has_shapes(look: Look) -> bool:
    """Is it a file of LabelMe, or a folder whose first JSON file is one?"""
    if not look.path.is_dir() or look.rows or "instances.json" in look.keys:
        return look.keys >= KEYS
    first = next(iter(shape_files(look.path)), None)
    found = None if first is None else read_json(first)
    return isinstance(found, dict) and found.keys() >= KEYS


def labelme_rows(path: Path, report: Report, question: str = QUESTION) -> Iterator[Row]:
    """A row per picture and label, with boxes as corners in pixels; what was left out is counted in `report.notes`."""
    folder = path if path.is_dir() else path.parent
    for file in [path] if path.is_file() else shape_files(folder):
        place = file.relative_to(folder)
        with report.collecting(str(place), counts=True), naming_layout(file, "labelme"):
            data = read_json(Path(path_below(folder, str(place), "data.path")))
            note_unused(report, data, KNOWN)
            image = {"width": data["imageWidth"], "height": data["imageHeight"]}
            boxes: list[tuple[str, list[float]]] = []
            for number, shape in enumerate(data["shapes"], start=1):
                where = f"{place}, shape {number}"
                if (shape.get("shape_type") or "polygon") not in SHAPES:
                    report.leave_out("no rectangle or polygon", where, by_design=True)
                    continue
                label = str(shape["label"])
                box = corners({"bbox": around(shape["points"], repr(label[:40]))}, image, report, where)
                boxes += [] if box is None else [(label, box)]
            report.notes.update([] if boxes else ["pictures left out: no boxes"])
            picture = place.parent / str(data["imagePath"]).replace("\\", "/")
            shown: Record = {"id": str(place.with_suffix("")), "image": picture.as_posix(), "size": [*image.values()]}
            shown |= {"split": place.parts[0]} if place.parts[0] in SPLITS else {}
            yield from (Row(values, str(place), 1) for values in rows_by_label(shown, boxes, question))


def shape_files(folder: Path) -> list[Path]:
    """The JSON files of a folder, or else of the folders of its splits."""
    return sorted(folder.glob("*.json")) or sorted(file for split in SPLITS for file in folder.glob(f"{split}/*.json"))
