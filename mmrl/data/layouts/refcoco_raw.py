"""RefCOCO, RefCOCO+ and RefCOCOg as jxu124's parquet on the hub holds them.

Rows have image_path, sentences or raw_sentences, bbox (two corners), raw_anns and raw_image_info (JSON in texts) and split.

The box is that of `raw_anns`, COCO's own, and must agree with `bbox`. Pictures are files: `image_root` is the folder in which
`image_path` begins (coco/train2014/..).
"""

import json
from collections.abc import Iterator

from mmrl.data.layouts.answers import corners_of, four_numbers
from mmrl.data.layouts.base import row_like
from mmrl.data.readers import Cell, Row

RAW = ("image_path", "bbox", "raw_anns", "raw_image_info")
SENTENCES = ("sentences", "raw_sentences", "captions")
DROPS = ("sent_ids", "ref_id", "ann_id", "anns_id", "image_id", "category_id", "global_image_id", "file_name")
OVERHANG = 1.0
"""Pixels by which boxes stick out of pictures in COCO, and may be cut."""


def raw_row(row: Row) -> Iterator[Row]:
    annotation, image = (_object(row.values.get(name), name) for name in ("raw_anns", "raw_image_info"))
    found, written = four_numbers(annotation.get("bbox"), "raw_anns.bbox"), four_numbers(row.values.get("bbox"), "bbox")
    box = corners_of(found)
    if min(_distance(written, found), _distance(written, box)) > OVERHANG:
        raise ValueError(f"bbox {written} is not the box of raw_anns, {found} (x, y, width, height): remove the row")
    width, height = image.get("width"), image.get("height")
    if isinstance(width, int) and isinstance(height, int):
        box = [min(max(x, 0.0), float(most)) for x, most in zip(box, [width, height] * 2, strict=True)]
    asked = _sentences(row)
    said = {
        "id": None if row.values.get("ref_id") is None else str(row.values["ref_id"]),
        "image": row.values.get("image_path"),
        "size": [width, height] if width and height else None,
        "question": asked[0] if len(asked) == 1 else asked,
        "box": box,
        "split": row.values.get("split"),
    }
    yield row_like(row, (*RAW, *SENTENCES, *DROPS), said)


def _sentences(row: Row) -> list[str]:
    """The row's sentences, whichever of three columns holds them."""
    for name in SENTENCES:
        found: Cell = row.values.get(name)
        found = _json(found, name) if isinstance(found, str) and found.startswith("[") else found
        listed = found if isinstance(found, list) else []
        texts = [item.get("sent") or item.get("raw") if isinstance(item, dict) else item for item in listed]
        if texts and all(isinstance(text, str) and text.strip() for text in texts):
            return [str(text).strip() for text in texts]
    raise ValueError(f"none of the columns {', '.join(SENTENCES)} holds a list of sentences: remove the row")


def _json(text: str, name: str) -> Cell:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"column {name} is not JSON: {error}") from None


def _object(text: Cell, name: str) -> dict[str, Cell]:
    found = _json(text, name) if isinstance(text, str) else text
    if not isinstance(found, dict):
        raise ValueError(f"column {name} must hold an object, not {str(text)[:80]}")
    return found


def _distance(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
