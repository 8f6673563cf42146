"""COCO's instances: one JSON object with images, annotations and categories; a row per picture and category, with all boxes.

MDETR writes RefCOCO so (finetune_refcoco_val.json), with a `caption` in every image, which is one sentence there.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from mmrl.data.readers import Cell, Row, read_json
from mmrl.data.validate import Report

T = TypeVar("T")
Record = dict[str, Cell]
"""An object of a JSON file: `{"id": 7, "file_name": "7.jpg"}`."""
QUESTION = "Locate every {label} in the picture."
INSTANCES = {"images", "annotations", "categories"}
CAPTIONED = {"images", "annotations", "caption"}
_MOST = 1e12
"""Beyond any picture."""
_OVERHANG = 1.0
"""Pixels by which annotation tools let boxes stick out; such boxes are cut at the edge and counted."""


def coco_rows(path: Path, report: Report, question: str = QUESTION) -> Iterator[Row]:
    """Rows of an instances file (else ValueError), boxes as corners; what was left out is counted in `report.notes`."""
    with naming_layout(path, "coco"):
        data = read_json(path)
        images, names = by_id(data["images"]), {category["id"]: category["name"] for category in data["categories"]}
        boxes: defaultdict[tuple[Hashable, Hashable], list[list[float]]] = defaultdict(list)
        for number, annotation in enumerate(data["annotations"], start=1):
            with report.collecting(f"{path.name}, annotation {annotation.get('id', f'number {number}')}", counts=True):
                image_id = annotation["image_id"]
                box = corners(annotation, find_record(images, image_id, "picture"), report.notes)
                if box is not None:
                    find_record(names, annotation["category_id"], "category")
                    boxes[image_id, annotation["category_id"]].append(box)
        empty = len(images) - len({image_id for image_id, _ in boxes})
        report.notes.update({"pictures left out: no boxes": empty} if empty else {})
        rows: list[Record] = []
        for (image_id, category_id), found in boxes.items():
            shown, name = picture_of(f"{image_id}-{category_id}", images[image_id]), names[category_id]
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
        rows: list[Record] = []
        found: defaultdict[Hashable, list[Record]] = defaultdict(list)
        for annotation in data["annotations"]:
            found[annotation["image_id"]].append(annotation)
        for image in data["images"]:
            boxes = [corners(annotation, image, report.notes) for annotation in found[image["id"]]]
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
        raise ValueError(f"{path} does not have the layout of {name}: {type(error).__name__} {error}") from None


def corners(annotation: Record, image: Record, notes: Counter[str]) -> list[float] | None:
    """The annotation's box as two corners inside the picture, or None with a note why."""
    if annotation.get("iscrowd"):
        notes["annotations left out: crowd"] += 1
        return None
    numbers = annotation["bbox"]
    if (
        not isinstance(numbers, list)
        or len(numbers) != 4
        or not all(isinstance(x, int | float) and abs(x) <= _MOST for x in numbers)
    ):
        raise ValueError(f"annotation {annotation.get('id')} has bbox {str(numbers)[:80]}: it must be four numbers")
    x, y, width, height = map(float, numbers)
    found = [x, y, x + width, y + height]
    cut = [min(max(a, 0.0), float(most)) for a, most in zip(found, [image["width"], image["height"]] * 2, strict=True)]
    if max(abs(a - b) for a, b in zip(found, cut, strict=True)) > _OVERHANG:
        notes["annotations left out: outside the picture"] += 1
        return None
    if cut[2] <= cut[0] or cut[3] <= cut[1]:
        notes["annotations left out: no area"] += 1
        return None
    notes.update(["annotations cut at the picture's edge"] if cut != found else [])
    return [round(a, 4) for a in cut]


def by_id(rows: list[Record]) -> dict[Hashable, Record]:
    return {row["id"]: row for row in rows}
