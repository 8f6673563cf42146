"""RefCOCO, RefCOCO+ and RefCOCOg as their makers publish them: a folder with instances.json and refs (.p or .json).

One row per sentence, with its split. Also as MDETR writes them (finetune_refcoco_val.json): COCO's keys, and a `caption` in every
image, which is one sentence there.
"""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from mmrl.data.layouts.base import FileLayout, Look
from mmrl.data.layouts.coco import Record, by_id, collecting_rows, corners, find_record, naming_layout, read_json
from mmrl.data.readers import Row
from mmrl.data.validate import Report

REFS, INSTANCES = "refs", "instances.json"


def is_refs(name: str) -> bool:
    """True for the names of refs files: `refs(unc).p`, `refs(umd).json`."""
    return name.startswith(REFS) and name.endswith((".p", ".json"))


def is_folder(look: Look) -> bool:
    if look.path.is_dir():
        return INSTANCES in look.keys and any(map(is_refs, look.keys))
    return is_refs(look.path.name) and (look.path.suffix == ".p" or look.has("ann_id", "sentences"))


def refer_rows(path: Path, report: Report) -> Iterator[Row]:
    """Rows of a folder or refs file, with boxes as corners; what was left out is counted in `report.notes`.

    Raises ValueError naming the file where it does not have the layout, or is a pickle that could run code.
    """
    refs_file = find_refs(path)
    with naming_layout(path, "refcoco"):
        data = read_json(refs_file.parent / INSTANCES)
        images, annotations = by_id(data["images"]), by_id(data["annotations"])
        rows: list[Record] = []
        for ref in read_refs(refs_file):
            with collecting_rows(report, refs_file, "ref", ref.get("ref_id")):
                image = find_record(images, ref["image_id"], "picture")
                rows += _sentences(
                    ref, image, corners(find_record(annotations, ref["ann_id"], "annotation"), image, report.notes)
                )
    yield from (Row(values, refs_file.name, number) for number, values in enumerate(rows, start=1))


def _sentences(ref: Record, image: Record, box: list[float] | None) -> Iterator[Record]:
    """A row per sentence; none where there is no box."""
    for i, sentence in enumerate(ref["sentences"] if box is not None else []):
        yield {
            "id": f"{ref['ref_id']}-{i}",
            "image": image["file_name"],
            "size": [image["width"], image["height"]],
            "question": sentence["sent"],
            "box": box,
            "split": ref["split"],
        }


def find_refs(source: Path) -> Path:
    """The one refs file of a folder; FileNotFoundError without the folder, ValueError for none or several."""
    if source.is_file():
        return source
    if not source.is_dir():
        raise FileNotFoundError(f"{source} does not exist: check the path")
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


def is_captions(look: Look) -> bool:
    return look.keys >= {"images", "annotations", "caption"}


def caption_rows(path: Path, report: Report) -> Iterator[Row]:
    """A row per image of MDETR's files, whose `caption` is a sentence and whose annotation is the box it means."""
    with naming_layout(path, "refcoco_mdetr"):
        data = read_json(path)
        rows: list[Record] = []
        found: dict[object, list[Record]] = {}
        for annotation in data["annotations"]:
            found.setdefault(annotation["image_id"], []).append(annotation)
        for image in data["images"]:
            boxes = [corners(annotation, image, report.notes) for annotation in found.get(image["id"], [])]
            if len(boxes) != 1:
                report.notes["sentences left out: not one box"] += 1
            elif boxes[0] is not None:
                size = [image["width"], image["height"]]
                said = {"id": str(image["id"]), "image": image["file_name"], "size": size}
                rows.append({**said, "question": image["caption"], "box": boxes[0]})
    yield from (Row(values, path.name, number) for number, values in enumerate(rows, start=1))


REFER = FileLayout("refcoco", "RefCOCO's folder of instances.json and refs", is_folder, refer_rows)
MDETR = FileLayout("refcoco_mdetr", "RefCOCO as MDETR writes it, a caption per image", is_captions, caption_rows, (), ("coco",))
