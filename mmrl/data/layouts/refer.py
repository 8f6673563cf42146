"""RefCOCO, RefCOCO+ and RefCOCOg as their makers publish them: a folder with instances.json and refs (.p or .json).

One row per sentence, with its split.
"""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from mmrl.data.layouts.annotations.coco import Record, by_id, corners, find_record, naming_layout, numbered, picture_of
from mmrl.data.layouts.base import Look
from mmrl.data.readers import Row, read_json
from mmrl.data.unused import note_unused
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
