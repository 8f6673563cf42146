"""A small file or folder of every layout, with the pictures and clips it names in a folder of their own."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from tests.support.videos import even, write_video

NUM = 2
"""Pictures, and clips, of every layout."""
BOX = [1, 2, 30, 40]
FOUR = "[1, 2, 30, 40]"
ASK = "Where is the cat?"
Make = Callable[[Path], Path]
"""Writes the files of a layout into a folder, and gives the one to read."""


def lay_media(folder: Path) -> Path:
    """media/ with 0.png, 1.png, their copies in media/images, and two clips; gives the folder."""
    media = folder / "media"
    (media / "images").mkdir(parents=True)
    for i in range(NUM):
        Image.new("RGB", (64, 48), (200 * i, 9, 9)).save(media / f"{i}.png")
        (media / "images" / f"{i}.jpg").write_bytes((media / f"{i}.png").read_bytes())
        write_video(media / f"{i}.mp4", even(10))
        (media / f"{i}.mp4").write_bytes((media / f"{i}.mp4").read_bytes() + bytes([i]))
    return media


def png(folder: Path, i: int) -> bytes:
    return (folder / f"media/{i}.png").read_bytes()


def lines(name: str, row: Callable[[int], dict[str, Any]]) -> Make:
    """A file of rows: JSONL, JSON, CSV, TSV or parquet, by its ending."""

    def make(folder: Path) -> Path:
        rows, file = [row(i) for i in range(NUM)], folder / name
        if file.suffix == ".parquet":
            parquet.write_table(pa.Table.from_pylist(rows), file)
        elif file.suffix == ".json":
            file.write_text(json.dumps(rows))
        elif file.suffix == ".jsonl":
            file.write_text("".join(json.dumps(one) + "\n" for one in rows))
        else:
            cut = "\t" if file.suffix == ".tsv" else ","
            cells = [list(rows[0]), *(list(map(str, one.values())) for one in rows)]
            file.write_text("".join(cut.join(f'"{cell}"' for cell in row) + "\n" for row in cells))
        return file

    return make


def text(name: str, words: str) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_text(words)
        return folder / name

    return make


def tree(*files: tuple[str, str]) -> Make:
    """A folder of texts."""

    def make(folder: Path) -> Path:
        for name, words in files:
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / name).write_text(words)
        return folder / "tree"

    return make


def shards(folder: Path) -> Path:
    with tarfile.open(folder / "rows.tar", "w") as archive:
        for i in range(NUM):
            for name, data in ((f"{i}.png", png(folder, i)), (f"{i}.json", json.dumps({"question": ASK, "answer": i}).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return folder / "rows.tar"


def paired(folder: Path) -> Path:
    for i in range(NUM):
        (folder / f"media/{i}.txt").write_text(f"a fox, {i}")
        (folder / f"media/{i}.mp4").unlink()
    return folder / "media"


def saved(folder: Path) -> Path:
    rows = [{"image": Image.open(folder / f"media/{i}.png"), "question": ASK, "answer": str(i)} for i in range(NUM)]
    data = datasets.Dataset.from_list(rows)
    datasets.DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(str(folder / "saved"))
    return folder / "saved"


def refcoco(folder: Path) -> Path:
    refs = [{"ref_id": i, "ann_id": i, "image_id": i, "split": "train", "sentences": [{"sent": ASK}]} for i in range(NUM)]
    (folder / "instances.json").write_text(json.dumps(COCO))
    (folder / "refs(unc).json").write_text(json.dumps(refs))
    return folder


IMAGES = [{"id": i, "file_name": f"{i}.png", "width": 64, "height": 48} for i in range(NUM)]
ANNOTATIONS = [{"id": i, "image_id": i, "category_id": 3, "bbox": [1, 2, 29, 38], "iscrowd": 0} for i in range(NUM)]
COCO = {"images": IMAGES, "annotations": ANNOTATIONS, "categories": [{"id": 3, "name": "cat"}]}
VOC = (
    "<annotation><filename>{0}.png</filename><size><width>64</width><height>48</height></size><object><name>cat</name>"
    "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>30</xmax><ymax>40</ymax></bndbox></object></annotation>"
)
SHAPES = [{"label": "cat", "shape_type": "rectangle", "points": [[1, 2], [30, 40]]}]
LABELME = {"imageWidth": 64, "imageHeight": 48, "shapes": SHAPES}
R1 = {"problem": "how many?", "data_type": "video", "problem_type": "numerical", "solution": "<answer>3</answer>"}
CHOICES = [{"choice": "a", "answer": "correct"}, {"choice": "b", "answer": "wrong"}]
CORNERS = [{"bbox": [40, 2, 60, 40], "label": "cat"}]
SIDES = ("xmin", "ymin", "xmax", "ymax")
CLEVRER = [{"question_type": "counterfactual", "question": "what if?", "choices": CHOICES}]
GQA = {"frame_count": 10, "width": 64, "height": 48, "question": "what?", "answer": 0, "qid": 0, "type": "CW"}
CAPTIONS = {str(i): {"duration": 0.4, "timestamps": [[0, 0.3]], "sentences": ["a ball falls"]} for i in range(NUM)}
ASKED = {"role": "user", "content": "<image>" + ASK}


def lmms(i: int) -> dict[str, Any]:
    shown = {"image": f"{i}.png", "bbox": [1.0, 2.0, 29.0, 38.0], "segmentation": [1.0], "file_name": "x"}
    return {**shown, "question_id": str(i), "question": "caption?", "answer": ["left cat", "cat"]}


def studio(i: int) -> dict[str, Any]:
    drawn = {"x": 25, "y": 25, "width": 50, "height": 50, "rotation": 0, "rectanglelabels": ["cat"]}
    results = [{"id": "a", "original_width": 64, "original_height": 48, "type": "rectanglelabels", "value": drawn}]
    return {"id": i, "data": {"image": f"/data/{i}.png"}, "annotations": [{"result": results}]}


def raw(i: int) -> dict[str, Any]:
    shown = {"image_path": f"{i}.png", "bbox": [1.0, 2.0, 30.0, 40.0], "sentences": [{"sent": ASK}], "ref_id": i}
    return {**shown, "raw_anns": json.dumps(ANNOTATIONS[i]), "raw_image_info": json.dumps(IMAGES[i])}


LAYOUTS: dict[str, Make] = {
    "boxes": lines("rows.jsonl", lambda i: {"image": f"{i}.png", "question": ASK, "box": BOX}),
    "questions": lines("rows.json", lambda i: {"image": f"{i}.png", "question": ASK, "answer": "left"}),
    "messages": lines("rows.jsonl", lambda i: {"messages": [ASKED], "images": [f"{i}.png"], "solution": FOUR}),
    "llava": lines("rows.json", lambda i: {"image": f"{i}.png", "conversations": [{"from": "human", "value": ASK}], "answer": 3}),
    "trl": lines("rows.parquet", lambda i: {"prompt": ASK, "images": [f"{i}.png"], "answer": "3"}),
    "problem": lines("rows.jsonl", lambda i: {"image": f"{i}.png", "problem": ASK, "solution": BOX}),
    "prefix": lines(
        "rows.jsonl", lambda i: {"image": f"{i}.png", "prefix": "<OD>", "suffix": "cat<loc_9><loc_9><loc_99><loc_99>"}
    ),
    "sides": lines("rows.csv", lambda i: {"filename": f"{i}.png", "class": "cat", **dict(zip(SIDES, BOX, strict=True))}),
    "objects": lines("rows.parquet", lambda i: {"image": f"{i}.png", "objects": {"bbox": [[1, 2, 29, 38]], "category": ["cat"]}}),
    "objects_corners": lines("rows.jsonl", lambda i: {"image": f"{i}.png", "width": 64, "height": 48, "objects": CORNERS}),
    "label_studio": lines("rows.json", studio),
    "coco": text("instances.json", json.dumps(COCO)),
    "yolo": tree(("classes.txt", "cat\n"), *((f"labels/{i}.txt", "0 0.5 0.5 0.25 0.5\n") for i in range(NUM))),
    "voc": tree(*((f"{i}.xml", VOC.format(i)) for i in range(NUM))),
    "labelme": tree(*((f"{i}.json", json.dumps({**LABELME, "imagePath": f"{i}.png"})) for i in range(NUM))),
    "refcoco": refcoco,
    "refcoco_mdetr": text("mdetr.json", json.dumps(COCO | {"images": [image | {"caption": ASK} for image in IMAGES]})),
    "refcoco_lmms": lines("rows.parquet", lmms),
    "refcoco_raw": lines("rows.parquet", raw),
    "video_r1": lines("rows.jsonl", lambda i: R1 | {"path": f"{i}.mp4", "problem_id": i}),
    "clevrer": lines("rows.json", lambda i: {"video_filename": f"{i}.mp4", "questions": CLEVRER}),
    "edits": lines("rows.jsonl", lambda i: {"image": f"{i}.png", "instruction": "make it blue", "mask": f"{i}.png"}),
    "prompts": text("prompts.txt", "a red fox\na blue dog\n"),
    "pictures": lines("rows.csv", lambda i: {"image": f"{i}.png", "caption": f"a fox, {i}"}),
    "charades_sta": text("clips.txt", "".join(f"{i} 0.1 0.3##a ball falls.\n" for i in range(NUM))),
    "next_gqa": lines("rows.csv", lambda i: {"video_id": i} | GQA | {f"a{k}": f"option {k}" for k in range(5)}),
    "activitynet_captions": text("captions.json", json.dumps(CAPTIONS)),
}
"""Layout -> what writes it; its pictures and clips lie in media/."""
KINDS: dict[str, Make] = {
    "boxes in CSV": lines("rows.csv", lambda i: {"image": f"{i}.png", "question": "Where, in the picture?", "box": BOX}),
    "options in TSV": lines(
        "rows.tsv", lambda i: {"image": f"{i}.png", "question": ASK, "A": "left", "B": "right", "answer": "B"}
    ),
    "spans": lines("rows.jsonl", lambda i: {"video": f"{i}.mp4", "question": "a ball falls", "span": [0.1, 0.3]}),
    "texts beside pictures": paired,
    "tar": shards,
    "DatasetDict": saved,
}
"""Other kinds of files -> what writes them."""
