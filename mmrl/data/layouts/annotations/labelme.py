"""LabelMe: a JSON file per picture, next to it, with shapes; a row per picture and label, with the boxes around its shapes.

    {"imagePath": "1.jpg", "imageWidth": 64, "imageHeight": 48,
     "shapes": [{"label": "cat", "shape_type": "rectangle", "points": [[4, 4], [20, 20]]}]}

Rectangles and polygons are boxes; points, lines and circles are left out and counted. A folder called train, val, valid or test
is the row's split.
"""

from collections.abc import Iterator
from pathlib import Path

from mmrl.data.files.paths import path_below
from mmrl.data.layouts.annotations.coco import QUESTION, Record, around, corners, naming_layout, rows_by_label
from mmrl.data.layouts.base import Look, note_unused
from mmrl.data.layouts.files import SPLITS
from mmrl.data.readers import Row, read_json
from mmrl.data.validate import Report

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
