"""RefCOCO, RefCOCO+ and RefCOCOg as their makers publish them, and as jxu124's parquet on the hub holds them.

The makers' folder has instances.json and refs (.p or .json), and gives one row per sentence, with its split.
Rows of the parquet have image_path, sentences or raw_sentences, bbox (two corners), raw_anns and raw_image_info (JSON in texts)
and split. The box is that of `raw_anns`, COCO's own, and must agree with `bbox`. Pictures are files: `image_root` is the folder
in which `image_path` begins (coco/train2014/..).
"""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from mmrl.data.layouts.annotations.coco import Record, by_id, corners, find_record, naming_layout, numbered, picture_of
from mmrl.data.layouts.answers import corners_of, four_numbers
from mmrl.data.layouts.base import PICTURES, Look, note_unused, one_of, row_like
from mmrl.data.readers import Cell, Row, parse_json, read_json
from mmrl.data.validate import Report
from mmrl.runtime.near import near

REFS, INSTANCES = "refs", "instances.json"
KNOWN = {"": ("ref_id", "ann_id", "image_id", "split", "sentences"), "sentences": ("sent",)}
"""The keys of a ref that are read."""


def is_refs(name: str) -> bool:
    """True for the names of refs files: `refs(unc).p`, `refs(umd).json`."""
    return name.startswith(REFS) and name.endswith((".p", ".json"))


def has_refs(look: Look) -> bool:
    if look.path.is_dir():
        return INSTANCES in look.keys and any(map(is_refs, look.keys))
    return is_refs(look.path.name) and (look.path.suffix == ".p" or look.has("ann_id", "sentences"))


def refer_rows(path: Path, report: Report) -> Iterator[Row]:
    """Rows of a folder or refs file, with boxes as corners; what was left out is counted in `report.notes`.

    Raises ValueError for another layout, or a pickle that could run code.
    """
    refs_file = find_refs(path)
    with naming_layout(path, "refcoco"):
        data = read_json(refs_file.parent / INSTANCES)
        images, annotations = by_id(data["images"], "picture"), by_id(data["annotations"], "annotation")
        rows: list[Record] = []
        for ref in read_refs(refs_file):
            place = f"{refs_file.name}, ref {ref.get('ref_id')}"
            with report.collecting(place, counts=True):
                note_unused(report, ref, KNOWN)
                image = find_record(images, ref["image_id"], "picture")
                box = corners(find_record(annotations, ref["ann_id"], "annotation"), image, report, place)
                for i, sentence in enumerate(ref["sentences"] if box is not None else []):
                    shown = picture_of(f"{ref['ref_id']}-{i}", image)
                    rows.append({**shown, "question": sentence["sent"], "box": box, "split": ref["split"]})
    yield from numbered(rows, refs_file)


def find_refs(source: Path) -> Path:
    """The one refs file of a folder; FileNotFoundError without the folder, ValueError for none or several."""
    if source.is_file():
        return source
    if not source.is_dir():
        raise FileNotFoundError(f"{source} does not exist{near(source)}: check the path")
    found = sorted(file for file in source.glob(f"{REFS}*") if is_refs(file.name))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise ValueError(f"{source} must hold one refs file, but there is {names}: give the path of the file")
    return found[0]


def read_refs(path: Path) -> list[Record]:
    if path.suffix != ".p":
        return read_json(path)
    with path.open("rb") as file:
        try:
            # the published files were written by Python 2
            return _DataOnly(file, encoding="latin1").load()
        except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError, MemoryError) as error:
            raise ValueError(f"{path} is not a pickle of plain data: {error}") from None


class _DataOnly(pickle.Unpickler):
    """An unpickler of plain data: a pickle that names any class or function could run code, and is refused."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")


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


def lmms_row(row: Row) -> Iterator[Row]:
    """A row of lmms-lab's parquet: its question asks for a caption, and its answers are what the box is called."""
    asked: Cell = row.values.get("answer")
    if not isinstance(asked, list) or not all(isinstance(sentence, str) for sentence in asked):
        raise ValueError(f"column answer must be a list of sentences, not {str(asked)[:80]}")
    said = {"id": row.values.get("question_id") or None, "question": asked[0] if len(asked) == 1 else asked}
    said |= {"image": one_of(row, *PICTURES), "box": corners_of(four_numbers(row.values.get("bbox"), "bbox"))}
    yield row_like(row, ("answer", "bbox", *PICTURES, "iscrowd", "segmentation", "file_name", "question_id"), said)


def _sentences(row: Row) -> list[str]:
    """The row's sentences, whichever of three columns holds them."""
    for name in SENTENCES:
        found: Cell = row.values.get(name)
        found = parse_json(found, f"column {name}") if isinstance(found, str) and found.startswith("[") else found
        listed = found if isinstance(found, list) else []
        texts = [item.get("sent") or item.get("raw") if isinstance(item, dict) else item for item in listed]
        if texts and all(isinstance(text, str) and text.strip() for text in texts):
            return [str(text).strip() for text in texts]
    raise ValueError(f"none of the columns {', '.join(SENTENCES)} holds a list of sentences: remove the row")


def _object(text: Cell, name: str) -> dict[str, Cell]:
    found = parse_json(text, f"column {name}") if isinstance(text, str) else text
    if not isinstance(found, dict):
        raise ValueError(f"column {name} must hold an object, not {str(text)[:80]}")
    return found


def _distance(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
