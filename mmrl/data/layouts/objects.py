"""Boxes beside their classes in a column `objects`, as data of Hugging Face has them; a row per picture and class.

    {"image": "1.jpg", "objects": {"bbox": [[1, 2, 29, 38]], "category": ["cat"]}}

`objects` may be a list of objects, too. Boxes are a corner, width and height in pixels; where all of many may be two corners as
well, the user is asked. A row with a question of its own stays one row.
"""

from collections.abc import Iterator
from contextlib import suppress

from mmrl.data.layouts.answers import corners_of, four_numbers
from mmrl.data.layouts.base import PICTURES, Look, Values, one_of, row_like
from mmrl.data.layouts.coco import QUESTION, Record, rows_by_label
from mmrl.data.layouts.habits import FEW, BoxHabits
from mmrl.data.readers import CLASSES, OBJECTS, Cell, Row

BOXES = ("bbox", "bboxes", "boxes")


def has_objects(look: Look) -> bool:
    return _is_of(look) and not (_habits(look).as_sizes < _habits(look).as_corners == _habits(look).num)


def has_corners(look: Look) -> bool:
    """Are all boxes of the first rows two corners, and too many for a chance, or no sizes?"""
    habits = _habits(look)
    return _is_of(look) and habits.as_corners == habits.num and (habits.num >= FEW or habits.as_sizes < habits.num)


def corner_row(row: Row, question: str = QUESTION) -> Iterator[Row]:
    """A row of which the boxes are two corners."""
    return objects_row(row, question, are_corners=True)


def objects_row(row: Row, question: str = QUESTION, are_corners: bool = False) -> Iterator[Row]:
    boxes = [(label, box if are_corners else corners_of(box)) for label, box in _boxes(row.values)]
    size = [row.values[side] for side in ("width", "height") if row.values.get(side) is not None]
    shown: Record = {
        "id": row.values.get("id", row.values.get("image_id")),
        "size": size or None,
        "image": one_of(row, *PICTURES),
    }
    used = (OBJECTS, "image_id", "width", "height", *PICTURES)
    if row.values.get("question") is not None:
        yield row_like(row, used, {**shown, "boxes": [{"bbox": box, "label": label} for label, box in boxes]})
        return
    for label, _ in boxes:
        if not isinstance(label, str):
            raise ValueError(f"a class of {OBJECTS} is {label!r}, and nothing says its name: write the names of classes there")
    shown["id"] = f"{row.source}-{row.number}" if shown["id"] is None else shown["id"]
    yield from (row_like(row, used, said) for said in rows_by_label(shown, boxes, question))


def _is_of(look: Look) -> bool:
    found = look.example(OBJECTS)
    first = found[0] if isinstance(found, list) and found else found
    return look.has_one(*PICTURES) and isinstance(first, dict) and not first.keys().isdisjoint(BOXES)


def _habits(look: Look) -> BoxHabits:
    """How the boxes of the first rows fit their pictures, where rows say how large these are."""
    habits = BoxHabits()
    for values in look.rows:
        with suppress(ValueError):
            size = values.get("width") or 10**9, values.get("height") or 10**9
            for _, box in _boxes(values):
                habits.add(box, size)
    return habits


def _boxes(values: Values) -> list[tuple[Cell, list[float]]]:
    """The classes and boxes of a list of objects, or of lists of them; ValueError for lists of several lengths."""
    found = values.get(OBJECTS) or []
    if isinstance(found, dict):
        lists = {name: value for name, value in found.items() if isinstance(value, list)}
        if len({len(value) for value in lists.values()}) > 1:
            lengths = ", ".join(f"{name} {len(value)}" for name, value in lists.items())
            raise ValueError(f"the lists of {OBJECTS} differ in length: {lengths}")
        found = [dict(zip(lists, one, strict=True)) for one in zip(*lists.values(), strict=True)]
    if not isinstance(found, list):
        raise ValueError(f"column {OBJECTS} must hold a list, not {str(found)[:80]}")
    return [(_one(item, CLASSES), four_numbers(_one(item, BOXES), BOXES[0])) for item in found]


def _one(item: Record, names: tuple[str, ...]) -> Cell:
    found = [name for name in names if item.get(name) is not None] if isinstance(item, dict) else []
    if len(found) != 1:
        raise ValueError(f"an object of {OBJECTS} must have one of {', '.join(names)}, not {str(item)[:80]}")
    return item[found[0]]
