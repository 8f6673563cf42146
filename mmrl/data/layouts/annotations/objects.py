"""Boxes beside their classes in a column `objects`, as data of Hugging Face has them; a row per picture and class.

    {"image": "1.jpg", "objects": {"bbox": [[1, 2, 29, 38]], "category": ["cat"]}}

`objects` may be a list of objects, too. Boxes are a corner, width and height in pixels; where all of many may be two corners as
well, the user is asked. A row with a question of its own stays one row.

The four sides of a box may be columns of their own, as CSV files have them; those with a label are gathered by picture and label:

image,question,xmin,ymin,xmax,ymax          filename,width,height,class,xmin,ymin,xmax,ymax
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from mmrl.data.layouts.annotations.coco import QUESTION, Record, rows_by_label
from mmrl.data.layouts.answers import corners_of, four_numbers
from mmrl.data.layouts.base import PICTURES, Look, Values, note_unused, one_of, row_like
from mmrl.data.layouts.habits import FEW, BoxHabits
from mmrl.data.readers import CLASSES, OBJECTS, Cell, Row
from mmrl.data.validate import Report

BOXES, SIZE = ("bbox", "bboxes", "boxes"), ("width", "height")
OURS = ("xmin", "ymin", "xmax", "ymax")
SIDES = (OURS, ("x1", "y1", "x2", "y2"), ("x_min", "y_min", "x_max", "y_max"), ("XMin", "YMin", "XMax", "YMax"))
SHOWN = (*PICTURES, "filename", "file_name", "image_path", "img_path", "path")
LABELS = ("label", "class", "category", "class_name", "name")


def has_objects(look: Look, are_corners: bool = False) -> bool:
    """Are its boxes a corner and sizes, or two corners? Both may be where many boxes fit both; few are a chance."""
    found, habits = look.example(OBJECTS), BoxHabits()
    first = found[0] if isinstance(found, list) and found else found
    if not look.has_one(*PICTURES) or not isinstance(first, dict) or first.keys().isdisjoint(BOXES):
        return False
    for values in look.rows:
        width, height = (values.get(side) or 10**9 for side in SIZE)
        with suppress(ValueError):
            for _, box in _boxes(values):
                habits.add(box, (width, height))
    no_sizes, no_corners = habits.as_sizes < habits.num, habits.as_corners < habits.num
    return not no_corners and (no_sizes or habits.num >= FEW) if are_corners else no_corners or not no_sizes


def objects_row(row: Row, question: str = QUESTION, are_corners: bool = False) -> Iterator[Row]:
    boxes = [(label, box if are_corners else corners_of(box)) for label, box in _boxes(row.values)]
    size = [row.values[side] for side in SIZE if row.values.get(side) is not None]
    name = row.values.get("id", row.values.get("image_id"))
    shown: Record = {"id": name, "size": size or None, "image": one_of(row, *PICTURES)}
    used = (OBJECTS, "image_id", *SIZE, *PICTURES)
    if row.values.get("question") is not None:
        yield row_like(row, used, {**shown, "boxes": [{"bbox": box, "label": label} for label, box in boxes]})
        return
    number = next((label for label, _ in boxes if not isinstance(label, str)), None)
    if number is not None:
        raise ValueError(f"a class of {OBJECTS} is {number!r}, and nothing says its name: write the names of classes there")
    shown["id"] = f"{row.source}-{row.number}" if name is None else name
    yield from (row_like(row, used, said) for said in rows_by_label(shown, boxes, question))


def _boxes(values: Values) -> list[tuple[Cell, list[float]]]:
    """The classes and boxes of a list of objects, or of lists of them; ValueError for lists of several lengths."""
    found = values.get(OBJECTS) or []
    if isinstance(found, dict):
        lists = {name: value for name, value in found.items() if isinstance(value, list)}
        if len(set(map(len, lists.values()))) > 1:
            raise ValueError(
                f"the lists of {OBJECTS} differ in length: {', '.join(f'{name} {len(lists[name])}' for name in lists)}"
            )
        found = [dict(zip(lists, one, strict=True)) for one in zip(*lists.values(), strict=True)]
    if not isinstance(found, list):
        raise ValueError(f"column {OBJECTS} must hold a list, not {str(found)[:80]}")
    return [(_one(item, CLASSES), four_numbers(_one(item, BOXES), BOXES[0])) for item in found]


def _one(item: Cell, names: tuple[str, ...]) -> Cell:
    found = [item[name] for name in names if item.get(name) is not None] if isinstance(item, dict) else []
    if len(found) != 1:
        raise ValueError(f"an object of {OBJECTS} must have one of {', '.join(names)}, not {str(item)[:80]}")
    return found[0]


def has_sides(look: Look) -> bool:
    return any(look.has(*names) for names in SIDES)


def side_rows(rows: Iterable[Row], report: Report, question: str = QUESTION) -> Iterator[Row]:
    """The rows with a question of their own, then those of each picture and label, with all their boxes."""
    pictures: dict[str, tuple[Row, Record, list[tuple[str, list[float]]]]] = {}
    """By its path, size and split."""
    for row in rows:
        with report.collecting(row.place, counts=True):
            values = row.values
            names = next((names for names in SIDES if _first(values, names) is not None), None)
            if names is None:
                report.leave_out("no box", row.place, by_design=True)
                continue
            box, picture, label = [_number(values, name) for name in names], _first(values, SHOWN), _first(values, LABELS)
            shown: Record = {"image": picture, "size": [values[side] for side in SIZE if values.get(side) is not None] or None}
            if not isinstance(picture, str) or (label is None and values.get("question") is None):
                what = "label" if isinstance(picture, str) else "image"
                raise ValueError(f"no column holds the {what} ({', '.join(values)[:200]}): name it with columns.{what}=NAME")
            if values.get("question") is not None:
                yield row_like(row, (*names, *SHOWN, *SIZE), {**shown, "box": box})
            else:
                shown |= {"id": picture, "split": values.get("split")}
                pictures.setdefault(str(shown), (row, shown, []))[2].append((str(label), box))
                note_unused(report, values, {"": (*names, *SHOWN, *LABELS, *SIZE, "id", "split")})
    for row, shown, boxes in pictures.values():
        yield from (row_like(Row({}, row.source, row.number), (), said) for said in rows_by_label(shown, boxes, question))


def _first(values: Values, names: tuple[str, ...]) -> Cell:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _number(values: Values, name: str) -> float:
    try:
        return float(values[name])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"column {name} is {str(values.get(name))[:40]!r} and must be a number") from None
