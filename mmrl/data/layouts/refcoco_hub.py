"""RefCOCO, RefCOCO+ and RefCOCOg as two collections of the hub hold them, in parquet.

    refcoco_lmms   image (bytes), question (of captioning), answer (a list of sentences), bbox (a corner, width and height),
                   segmentation, iscrowd, file_name
    refcoco_raw    image_path, sentences or raw_sentences, bbox (two corners), raw_anns and raw_image_info (JSON in texts), split

Of the second, the box is that of `raw_anns`, COCO's own, and must agree with `bbox`. Its pictures are files: `image_root` is the
folder in which `image_path` begins (coco/train2014/..).
"""

import json
from collections.abc import Iterator

from mmrl.data.layouts.base import BOXES, Look, RowLayout, row_like
from mmrl.data.readers import Cell, Row

LMMS = ("image", "answer", "bbox", "segmentation", "file_name")
RAW = ("image_path", "bbox", "raw_anns", "raw_image_info")
SENTENCES = ("sentences", "raw_sentences", "captions")
OVERHANG = 1.0
"""Pixels by which boxes stick out of pictures in COCO, and may be cut."""


def is_lmms(look: Look) -> bool:
    return look.has(*LMMS) and isinstance(look.example("answer"), list)


def lmms_row(row: Row) -> Iterator[Row]:
    sentences: Cell = row.values.get("answer")
    if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
        raise ValueError(f"column answer must be a list of sentences, not {str(sentences)[:80]}")
    box = _corners(_four(row.values.get("bbox"), "bbox"))
    asked = sentences[0] if len(sentences) == 1 else sentences
    name = row.values.get("question_id") or None
    used = (*LMMS, "question", "iscrowd", "question_id")
    yield row_like(row, used, {"id": name, "image": row.values.get("image"), "question": asked, "box": box})


def is_raw(look: Look) -> bool:
    return look.has(*RAW) and look.has_one(*SENTENCES)


def raw_row(row: Row) -> Iterator[Row]:
    annotation, image = (_object(row.values.get(name), name) for name in ("raw_anns", "raw_image_info"))
    found, written = _four(annotation.get("bbox"), "raw_anns.bbox"), _four(row.values.get("bbox"), "bbox")
    box = _corners(found)
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
    used = (
        *RAW,
        *SENTENCES,
        "sent_ids",
        "ref_id",
        "ann_id",
        "anns_id",
        "image_id",
        "category_id",
        "global_image_id",
        "file_name",
    )
    yield row_like(row, used, said)


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


def _four(found: Cell, name: str) -> list[float]:
    if not isinstance(found, list | tuple) or len(found) != 4 or not all(isinstance(x, int | float) for x in found):
        raise ValueError(f"{name} must be four numbers, not {str(found)[:80]}")
    return [float(x) for x in found]


def _corners(box: list[float]) -> list[float]:
    x, y, width, height = box
    # 32-bit floats of the file, rounded so that a box at the edge stays inside its picture
    return [round(side, 4) for side in (x, y, x + width, y + height)]


def _distance(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


REFCOCO_LMMS = RowLayout(
    "refcoco_lmms",
    "RefCOCO in the hub's parquet of lmms-lab",
    (*LMMS, "question_id"),
    is_lmms,
    lmms_row,
    beats=("boxes", "questions"),
    always=BOXES,
)
REFCOCO_RAW = RowLayout(
    "refcoco_raw", "RefCOCO in parquet with image_path and raw_anns", (*RAW, *SENTENCES), is_raw, raw_row, ("boxes",), BOXES
)
