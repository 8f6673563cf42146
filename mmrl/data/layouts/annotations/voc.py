"""Pascal VOC: an XML file per picture, in Annotations/ with the pictures in JPEGImages/, or next to them.

    <annotation><filename>1.jpg</filename><size><width>64</width><height>48</height></size>
      <object><name>cat</name><bndbox><xmin>5</xmin><ymin>5</ymin><xmax>20</xmax><ymax>20</ymax></bndbox></object></annotation>

Pixels count from 1 and both corners belong to the box, so 1 is taken from xmin and ymin. ImageSets/Main/train.txt and its
neighbours list the splits. A file that declares a document type, which entities need, is refused before it is parsed.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mmrl.data.files.paths import path_below
from mmrl.data.layouts.annotations.coco import QUESTION, Record, corners, rows_by_label
from mmrl.data.layouts.base import Look, note_unused
from mmrl.data.layouts.files import SPLITS, VOC_LISTS
from mmrl.data.readers import Cell, Row, read_text
from mmrl.data.validate import Report

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

ANNOTATIONS, SUFFIX = "Annotations", ".xml"
PICTURES = ("JPEGImages", "images")
SIDES = ("xmin", "ymin", "xmax", "ymax")
KNOWN = {"": ("filename", "size", "object"), "size": ("width", "height"), "object": ("name", "bndbox"), "object.bndbox": SIDES}
"""The elements that are read."""
_SAID = re.compile(r"\s+(?:-?1|0)$")
LONGEST = 2**24
"""Bytes of an XML file."""


def has_xml(look: Look) -> bool:
    return look.path.suffix.lower() == SUFFIX or bool(look.path.is_dir() and xml_files(look.path))


def voc_rows(path: Path, report: Report, question: str = QUESTION) -> Iterator[Row]:
    """A row per picture and name, with boxes as corners in pixels; what was left out is counted in `report.notes`."""
    folder = path if path.is_dir() else path.parent
    below = next((name for name in PICTURES if (folder / name).is_dir()), "")
    files, split_of = [path] if path.is_file() else xml_files(folder), dict[str, str]()
    stems = {file.stem for file in xml_files(folder)}
    for split in SPLITS:
        listed = folder / VOC_LISTS / f"{split}.txt"
        for number, line in enumerate(read_text(listed).splitlines() if listed.is_file() else (), start=1):
            # whole, and without the 1, 0 or -1 that ends the names of a class
            names = {line.strip(), _SAID.sub("", line.strip())}
            split_of |= dict.fromkeys(names, split)
            with report.collecting(f"{VOC_LISTS}/{split}.txt:{number}", counts=True):
                if line.strip() and stems.isdisjoint(names):
                    raise ValueError(
                        f"it names {line.strip()[:80]!r}, and there is no such file in {ANNOTATIONS}: remove the line"
                    )
    for file in files:
        place = file.relative_to(folder)
        with report.collecting(f"{place}:1", counts=True):
            root = read_xml(Path(path_below(folder, str(place), "data.path")))
            note_unused(report, _as_object(root, 3), KNOWN)
            name = _text(root, "filename")
            size = [int(_number(root, f"size/{side}")) for side in ("width", "height")]
            boxes = [(label, box) for label, box in _boxes(root, size, report, str(place)) if box is not None]
            report.notes.update([] if boxes else ["pictures left out: no boxes"])
            # in one folder a picture lies next to its file
            near = below or ("" if place.parts[0] == ANNOTATIONS else place.parent.as_posix())
            shown: Record = {"id": place.stem, "image": (Path(near) / name).as_posix(), "size": size}
            shown |= {"split": split_of[place.stem]} if place.stem in split_of else {}
            yield from (Row(values, str(place), 1) for values in rows_by_label(shown, boxes, question))


def xml_files(folder: Path) -> list[Path]:
    """The XML files of a folder: those in Annotations, or its own."""
    within = folder / ANNOTATIONS
    return sorted((within if within.is_dir() else folder).glob(f"*{SUFFIX}"))


def read_xml(file: Path) -> "Element":
    """The root of an XML file; ValueError for one that is none, too long, or declares entities."""
    from xml.etree import ElementTree

    if file.stat().st_size > LONGEST:
        raise ValueError(f"{file.name} is longer than {LONGEST:,} bytes: it describes more than a picture")
    text = read_text(file)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError(
            f"{file.name} declares a document type, with which entities begin that could unfold: remove <!DOCTYPE ..>"
        )
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"{file.name} is not XML: {error}") from None


def _as_object(element: "Element", depth: int) -> dict[str, Cell]:
    """An element as JSON would have it: lists of what it holds, by name, down to a depth."""
    held: dict[str, Cell] = {}
    for child in element:
        held.setdefault(child.tag, []).append(_as_object(child, depth - 1) if depth > 1 and len(child) else child.text or "")
    return held


def _boxes(root: "Element", size: list[int], report: Report, file: str) -> Iterator[tuple[str, list[float] | None]]:
    for number, found in enumerate(root.findall("object"), start=1):
        x1, y1, x2, y2 = (_number(found, f"bndbox/{side}") for side in SIDES)
        x1, y1 = max(x1 - 1, 0.0), max(y1 - 1, 0.0)
        annotation: Record = {"id": _text(found, "name"), "bbox": [x1, y1, x2 - x1, y2 - y1]}
        yield annotation["id"], corners(annotation, {"width": size[0], "height": size[1]}, report, f"{file}, object {number}")


def _text(root: "Element", path: str) -> str:
    text = (root.findtext(path) or "").strip()
    if not text:
        raise ValueError(f"<{path.replace('/', '><')}> is missing or empty: it does not have the layout of voc")
    return text


def _number(root: "Element", path: str) -> float:
    text = _text(root, path)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"<{path.replace('/', '><')}> is {text[:40]!r} and must be a number") from None
