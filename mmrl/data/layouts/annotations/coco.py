"""COCO's instances: one JSON object with images, annotations and categories; a row per picture and category, with all boxes.

MDETR writes RefCOCO so (finetune_refcoco_val.json), with a `caption` in every image, which is one sentence there.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import cos, isfinite, radians, sin
from pathlib import Path
from typing import TypeVar

from mmrl.data.layouts.base import note_unused
from mmrl.data.readers import Cell, Row, read_json
from mmrl.data.validate import Report

T = TypeVar("T")
Record = dict[str, Cell]
"""An object of a JSON file: `{"id": 7, "file_name": "7.jpg"}`."""
QUESTION = "Locate every {label} in the picture."
INSTANCES = {"images", "annotations", "categories"}
CAPTIONED = {"images", "annotations", "caption"}
IMAGE_KEYS = ("id", "file_name", "width", "height")
BOX_KEYS = ("id", "image_id", "bbox", "iscrowd", "segmentation", "attributes")
KNOWN = {
    "": tuple(INSTANCES),
    "images": IMAGE_KEYS,
    "categories": ("id", "name"),
    "annotations": (*BOX_KEYS, "category_id"),
    "annotations.attributes": ("rotation",),
}
"""The keys that are read."""
SAID = {"": tuple(INSTANCES), "images": (*IMAGE_KEYS, "caption"), "annotations": BOX_KEYS}
"""The same of MDETR's files."""
_MOST = 1e12
"""Beyond any picture."""
_OVERHANG = 1.0
"""Pixels by which annotation tools let boxes stick out; such boxes are cut at the edge and counted."""


def coco_rows(path: Path, report: Report, question: str = QUESTION) -> Iterator[Row]:
    """Rows of an instances file (else ValueError), boxes as corners; what was left out is counted in `report.notes`.

    Categories of one name are one question.
    """
    with naming_layout(path, "coco"):
        data = read_json(path)
        note_unused(report, data, KNOWN)
        images, categories = by_id(data["images"], "picture"), by_id(data["categories"], "category")
        boxes: dict[tuple[Hashable, str], tuple[Hashable, list[list[float]]]] = {}
        for number, annotation in enumerate(data["annotations"], start=1):
            place = f"{path.name}, annotation {annotation.get('id', f'number {number}')}"
            with report.collecting(place, counts=True):
                image_id = annotation["image_id"]
                box = corners(annotation, find_record(images, image_id, "picture"), report, place)
                if box is not None:
                    key = image_id, str(find_record(categories, annotation["category_id"], "category")["name"])
                    boxes.setdefault(key, (annotation["category_id"], []))[1].append(box)
        empty = len(images) - len({image_id for image_id, _ in boxes})
        report.notes.update({"pictures left out: no boxes": empty} if empty else {})
        rows: list[Record] = []
        for (image_id, name), (category_id, found) in boxes.items():
            shown = picture_of(f"{image_id}-{category_id}", images[image_id])
            listed = [{"bbox": box, "label": name} for box in found]
            rows.append({**shown, "question": question.replace("{label}", name), "boxes": listed})
    yield from numbered(rows, path)


def rows_by_label(shown: Record, boxes: Iterable[tuple[str, list[float]]], question: str) -> Iterator[Record]:
    """A row per name among the boxes of a picture, with all boxes of that name."""
    found: defaultdict[str, list[list[float]]] = defaultdict(list)
    for label, box in boxes:
        found[label].append(box)
    for label, listed in found.items():
        asked = {"id": f"{shown['id']}-{label}", "question": question.replace("{label}", label)}
        yield {**shown, **asked, "boxes": [{"bbox": box, "label": label} for box in listed]}


def caption_rows(path: Path, report: Report) -> Iterator[Row]:
    """A row per image of MDETR's files, whose `caption` is a sentence and whose annotation is the box it means."""
    with naming_layout(path, "refcoco_mdetr"):
        data = read_json(path)
        note_unused(report, data, SAID)
        rows: list[Record] = []
        found: defaultdict[Hashable, list[Record]] = defaultdict(list)
        for annotation in data["annotations"]:
            found[annotation["image_id"]].append(annotation)
        for image in data["images"]:
            place = f"{path.name}, picture {image['id']}"
            boxes = [corners(annotation, image, report, place) for annotation in found[image["id"]]]
            if len(boxes) != 1:
                report.notes["sentences left out: not one box"] += 1
            elif boxes[0] is not None:
                rows.append({**picture_of(str(image["id"]), image), "question": image["caption"], "box": boxes[0]})
    yield from numbered(rows, path)


def picture_of(name: str, image: Record) -> Record:
    """The columns of a row that shows an image of the file."""
    return {"id": name, "image": image["file_name"], "size": [image["width"], image["height"]]}


def numbered(rows: Iterable[Record], path: Path) -> Iterator[Row]:
    return (Row(values, path.name, number) for number, values in enumerate(rows, start=1))


def find_record(records: Mapping[Hashable, T], key: Hashable, what: str) -> T:
    """The record of that id; ValueError where the file lists none."""
    if key not in records:
        raise ValueError(f"{what} {key!r} is not listed in the file: add it, or remove what names it")
    return records[key]


@contextmanager
def naming_layout(path: Path, name: str) -> Iterator[None]:
    """Turn the errors of a file that has another layout into a sentence that names it."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else f"{type(error).__name__} {error}"
        raise ValueError(f"{path} does not have the layout of {name}: {what}") from None


def corners(annotation: Record, image: Record, report: Report, place: str) -> list[float] | None:
    """The annotation's box as two corners inside the picture; None where it is left out, which the report then counts.

    Without a `bbox` it is the box around the outline, and a box that CVAT turned is the one around the turned box.
    """
    if annotation.get("iscrowd"):
        return report.leave_out("crowd", place, by_design=True)
    polygons = [part for part in annotation.get("segmentation") or () if isinstance(part, list)]
    outline = [part[i : i + 2] for part in polygons for i in range(0, len(part), 2)]
    numbers = annotation.get("bbox") or (around(outline, "its segmentation") if outline else None)
    if numbers is None:
        return report.leave_out("neither a box nor an outline", place)
    if (
        not isinstance(numbers, list)
        or len(numbers) != 4
        or not all(isinstance(x, int | float) and abs(x) <= _MOST for x in numbers)
    ):
        raise ValueError(f"annotation {annotation.get('id')} has bbox {str(numbers)[:80]}: it must be four numbers")
    x, y, width, height = map(float, numbers)
    attributes = annotation.get("attributes")
    if width > 0 < height and isinstance(attributes, dict) and attributes.get("rotation"):
        x, y, width, height = turned(x, y, width, height, attributes["rotation"])
    found = [x, y, x + width, y + height]
    cut = [min(max(a, 0.0), float(most)) for a, most in zip(found, [image["width"], image["height"]] * 2, strict=True)]
    if max(abs(a - b) for a, b in zip(found, cut, strict=True)) > _OVERHANG:
        return report.leave_out("outside the picture", place)
    if cut[2] <= cut[0] or cut[3] <= cut[1]:
        return report.leave_out("no area", place)
    report.num_kept += 1
    report.notes.update(["annotations cut at the picture's edge"] if cut != found else [])
    return [round(a, 4) for a in cut]


def around(points: Cell, what: str) -> list[float]:
    """The box around points of `what`, as a corner, width and height; ValueError unless all are pairs of numbers."""
    listed = points if isinstance(points, list) else []
    pairs = [point for point in listed if isinstance(point, list | tuple) and len(point) == 2]
    if not pairs or pairs != points or not all(isinstance(x, int | float) and abs(x) <= _MOST for pair in pairs for x in pair):
        raise ValueError(f"the points of {what} are {str(points)[:80]}: they must be pairs of numbers")
    xs, ys = zip(*pairs, strict=True)
    return [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]


def turned(x: float, y: float, width: float, height: float, degrees: Cell) -> list[float]:
    """The upright box around one that is turned about its centre; both are a corner, width and height."""
    if not isinstance(degrees, int | float) or not isfinite(degrees):
        raise ValueError(f"rotation is {str(degrees)[:40]!r}: it must be a number of degrees")
    across, up = abs(cos(radians(degrees))), abs(sin(radians(degrees)))
    wide, high = width * across + height * up, width * up + height * across
    return [x + (width - wide) / 2, y + (height - high) / 2, wide, high]


def by_id(rows: list[Record], what: str) -> dict[Hashable, Record]:
    """Records by their ids; ValueError where one id is two different records."""
    found: dict[Hashable, Record] = {}
    for row in rows:
        if found.setdefault(row["id"], row) != row:
            raise ValueError(f"{what} {row['id']!r} is listed twice, with different values: give each its own id")
    return found
