"""Boxes whose four sides are columns of their own, as CSV files have them; those with a label are gathered by picture and label.

image,question,xmin,ymin,xmax,ymax          filename,width,height,class,xmin,ymin,xmax,ymax
"""

from collections.abc import Iterable, Iterator

from mmrl.data.layouts.annotations.coco import QUESTION, Record, rows_by_label
from mmrl.data.layouts.base import PICTURES, Look, Values, row_like
from mmrl.data.readers import Cell, Row
from mmrl.data.unused import note_unused
from mmrl.data.validate import Report

OURS = ("xmin", "ymin", "xmax", "ymax")
SIDES = (OURS, ("x1", "y1", "x2", "y2"), ("x_min", "y_min", "x_max", "y_max"), ("XMin", "YMin", "XMax", "YMax"))
SHOWN, SIZE = (*PICTURES, "filename", "file_name", "image_path", "img_path", "path"), ("width", "height")
LABELS = ("label", "class", "category", "class_name", "name")


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
