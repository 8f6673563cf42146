"""Conversion of COCO's and RefCOCO's layouts to grounding JSONL (pixels, xyxy), which datasets/grounding_jsonl.py reads."""

import json
import pickle
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mmrl.data.files import path_below, relative_to, write_jsonl

KINDS = ("coco", "refcoco")
"""coco: an instances JSON; one row per picture and category, with all its boxes. refcoco: a folder with instances.json and
refs (.p or .json), or the refs file itself; one row per sentence, with its split."""
Record = dict[str, Any]
"""An object of a JSON file: `{"id": 7, "file_name": "7.jpg"}`."""
_MOST = 1e12
"""Beyond any picture."""
_OVERHANG = 1.0
"""Pixels by which annotation tools let boxes stick out; such boxes are cut at the edge and counted."""


@dataclass(frozen=True)
class Conversion:
    """The file that a conversion wrote, and what it left out."""

    out: Path
    num_rows: int
    num_pictures: int
    missing_pictures: int
    """Pictures of written rows that are not where `image_root` says; `check_file` names them."""
    notes: Mapping[str, int]
    """Reason why something was left out or changed -> how often: {"annotations left out: crowd": 3}."""

    def __str__(self) -> str:
        notes = "".join(f"\n  {count} {reason}" for reason, count in sorted(self.notes.items()))
        missing = f"\n  {self.missing_pictures} pictures not found: give image_root" if self.missing_pictures else ""
        return f"{self.out}: {self.num_rows} rows, {self.num_pictures} pictures{notes}{missing}"


def convert(
    source: str | Path,
    kind: str,
    out: str | Path,
    image_root: str | Path | None = None,
    question: str = "Locate every {label} in the picture.",
) -> Conversion:
    """Convert a data set and write `out`, whole or not at all.

    Picture paths become relative to the folder of `out`, or absolute outside it.

    Args:
        kind: one of KINDS.
        image_root: where the file names in `source` start; its folder by default.
        question: for coco, the text of a row, with {label} in it.

    Raises:
        ValueError: `source` does not have the layout, or none of its pictures is found; FileNotFoundError: it is not there.
    """
    source, out = Path(source), Path(out)
    if kind not in KINDS:
        raise ValueError(f"cannot convert {kind!r}: choose one of {', '.join(KINDS)}")
    folder = source if source.is_dir() else source.parent
    root, notes = Path(image_root) if image_root is not None else folder, Counter[str]()
    try:
        found = _coco_rows(source, question, notes) if kind == "coco" else _refcoco_rows(source, notes)
        rows = list[Record]()
        for row in found:
            path_below(root, row["image"], "image_root", image_root is None)
            rows.append(row | {"image": relative_to(row["image"], root, out.parent)})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{source} does not have the layout of {kind}: {type(error).__name__} {error}") from None
    if not rows:
        raise ValueError(f"{source} gives no rows ({dict(notes)}): nothing was written")
    pictures = {row["image"] for row in rows}
    missing = sum(not (out.parent / picture).is_file() for picture in pictures)
    if missing == len(pictures):
        raise ValueError(
            f"none of the {missing} pictures of {source} is below {root} (the first is {rows[0]['image']}): give --image-root "
            "where they are; nothing was written"
        )
    write_jsonl({out: rows})
    return Conversion(out, len(rows), len(pictures), missing, dict(notes))


def _coco_rows(source: Path, question: str, notes: Counter[str]) -> Iterator[Record]:
    data = _json(source)
    images, names = _by_id(data["images"]), {category["id"]: category["name"] for category in data["categories"]}
    boxes: defaultdict[tuple[Hashable, Hashable], list[list[float]]] = defaultdict(list)
    for annotation in data["annotations"]:
        box = _box(annotation, images[annotation["image_id"]], notes)
        if box is not None:
            boxes[annotation["image_id"], annotation["category_id"]].append(box)
    empty = len(images) - len({image_id for image_id, _ in boxes})
    notes.update({"pictures left out: no boxes": empty} if empty else {})
    for (image_id, category_id), found in boxes.items():
        image, name = images[image_id], names[category_id]
        yield {
            "id": f"{image_id}-{category_id}",
            "image": image["file_name"],
            "size": [image["width"], image["height"]],
            "question": question.replace("{label}", name),
            "boxes": [{"bbox": box, "label": name} for box in found],
        }


def _refcoco_rows(source: Path, notes: Counter[str]) -> Iterator[Record]:
    refs_file = _refs_file(source)
    data = _json(refs_file.parent / "instances.json")
    images, annotations = _by_id(data["images"]), _by_id(data["annotations"])
    for ref in _refs(refs_file):
        image = images[ref["image_id"]]
        box = _box(annotations[ref["ann_id"]], image, notes)
        for i, sentence in enumerate(ref["sentences"] if box is not None else []):
            yield {
                "id": f"{ref['ref_id']}-{i}",
                "image": image["file_name"],
                "size": [image["width"], image["height"]],
                "question": sentence["sent"],
                "box": box,
                "split": ref["split"],
            }


def _box(annotation: Record, image: Record, notes: Counter[str]) -> list[float] | None:
    """The annotation's xyxy inside the picture, or None with a note why."""
    if annotation.get("iscrowd"):
        notes["annotations left out: crowd"] += 1
        return None
    numbers = annotation["bbox"]
    if len(numbers) != 4 or not all(isinstance(x, int | float) and abs(x) <= _MOST for x in numbers):
        raise ValueError(f"annotation {annotation['id']} has bbox {str(numbers)[:80]}: it must be four numbers")
    x, y, width, height = map(float, numbers)
    corners = [x, y, x + width, y + height]
    cut = [min(max(a, 0.0), float(most)) for a, most in zip(corners, [image["width"], image["height"]] * 2, strict=True)]
    if max(abs(a - b) for a, b in zip(corners, cut, strict=True)) > _OVERHANG:
        notes["annotations left out: outside the picture"] += 1
        return None
    if cut[2] <= cut[0] or cut[3] <= cut[1]:
        notes["annotations left out: no area"] += 1
        return None
    notes.update(["annotations cut at the picture's edge"] if cut != corners else [])
    return [round(a, 4) for a in cut]


def _by_id(rows: list[Record]) -> dict[Hashable, Record]:
    return {row["id"]: row for row in rows}


def _json(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def _refs_file(source: Path) -> Path:
    if source.is_file():
        return source
    if not source.is_dir():
        raise FileNotFoundError(f"{source} does not exist")
    found = sorted(file for file in source.glob("refs*") if file.suffix in (".p", ".json"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise ValueError(f"{source} must hold one refs file, but there is {names}: give the path of the file")
    return found[0]


def _refs(path: Path) -> list[Record]:
    if path.suffix != ".p":
        return _json(path)
    with path.open("rb") as file:
        try:
            # the published files were written by Python 2
            return _DataOnly(file, encoding="latin1").load()
        except (pickle.UnpicklingError, EOFError, ValueError) as error:
            raise ValueError(f"{path} is not a pickle of plain data: {error}") from None


class _DataOnly(pickle.Unpickler):
    """An unpickler of plain data: a pickle that names any class or function could run code, and is refused."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")
