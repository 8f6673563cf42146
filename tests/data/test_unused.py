"""Keys that nothing reads are named by `mmrl data check`, or refused where they change what a row means."""

import json
from pathlib import Path

import pytest
from PIL import Image

from mmrl.app.commands.data import check
from mmrl.core.samples import Video
from mmrl.data.layouts.base import note_unused, refuse_keys
from mmrl.data.layouts.table import LAYOUTS
from mmrl.data.validate import Report
from tests.support.grounding import convert
from tests.support.refused import refused
from tests.support.videos import even, write_video

KNOWN = {"": ("a", "b"), "b": ("c",), "b.c": ("d",)}


def asked(*parts: object, **turn: object) -> list[object]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}], **turn}]


def swift(**objects: object) -> dict[str, object]:
    turns = [{"role": "user", "content": "<image>Find <ref-object>"}, {"role": "assistant", "content": "<bbox>"}]
    return {"messages": turns, "images": ["a.png"], "objects": {"ref": ["it"], "bbox": [[1, 2, 30, 40]], **objects}}


def written(folder: Path, *rows: object) -> str:
    """A file of these rows beside the picture and the clip that they may name."""
    Image.new("RGB", (64, 64)).save(folder / "a.png")
    if not (folder / "a.mp4").exists():
        write_video(folder / "a.mp4", even(80, 10.0))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "rows.jsonl")


def load(folder: Path, *rows: object, by: str = "qa_jsonl"):
    from mmrl import load_data

    return list(load_data(by, path=written(folder, *rows)))


def test_keys_are_found_at_their_places():
    report = Report("rows")
    note_unused(report, {"a": 1, "x": 2, "y": None, "b": [{"c": {"d": 1, "e": 2}}, {"z": 3}, "text"]}, KNOWN)
    assert report.unused == {"x": 1, "b.c.e": 1, "b.z": 1}
    refuse_keys({"b": {"c": 1, "z": None}}, {"b.z": "drop it"})
    refused(r"the row has b\.z: drop it", refuse_keys, {"b": [{"z": 0}]}, {"b.z": "drop it"})


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (swift(width=640), "objects.width (1)"),
        ({"messages": asked(name="Ann"), "answer": "x"}, "messages.name (1)"),
        ({"prompt": asked({"type": "text", "text": "a", "cache": 1}), "answer": "x"}, "prompt.content.cache (1)"),
        (
            {"messages": asked({"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}}), "answer": "x"},
            "messages.content.image_url.detail (1)",
        ),
        ({"conversations": [{"from": "human", "value": "q", "weight": 0}], "answer": "x"}, "conversations.weight (1)"),
        ({"problem": "where?", "image": "a.png", "solution": [{"bbox_2d": [1, 2, 3, 4], "angle": 9}]}, "solution.angle (1)"),
        ({"image": "a.png", "question": "where?", "box": {"bbox": [1, 2, 3, 4], "score": 0.5}}, "box.score (1)"),
    ],
)
def test_data_check_names_keys_that_are_not_read(row, named, tmp_path):
    assert f"keys that are not read: {named}" in check(written(tmp_path, row), [])


IMAGE = {"id": 1, "file_name": "a.png", "width": 64, "height": 64}
COCO = {
    "images": [IMAGE | {"license": 3}],
    "categories": [{"id": 1, "name": "cat", "supercategory": "animal"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 9, 9], "area": 81, "attributes": {"occluded": False}}
    ],
    "info": {},
}
SHAPE = {"label": "cat", "shape_type": "rectangle", "points": [[4, 4], [20, 20]], "group_id": 7, "flags": {}}
LABELME = {"imagePath": "a.png", "imageWidth": 64, "imageHeight": 64, "shapes": [SHAPE], "imageData": None, "version": "5"}
VOC = (
    "<annotation><filename>a.png</filename><size><width>64</width><height>64</height><depth>3</depth></size><object>"
    "<name>cat</name><difficult>1</difficult><bndbox><xmin>5</xmin><ymin>5</ymin><xmax>20</xmax><ymax>20</ymax><angle>9</angle></bndbox></object>"
    "</annotation>"
)


ENTRY = {"duration": 8.0, "timestamps": [[0, 1]], "sentences": ["a"], "url": "x"}
QUESTION = {"question_id": 0, "question_type": "explanatory", "question": "Why?"}
CLEVRER = {
    "scene_index": 1,
    "video_filename": "a.mp4",
    "questions": [{**QUESTION, "choices": [{"choice": "b", "answer": "correct", "program": []}]}],
}
NEXT = "video_id,frame_count,question,answer,qid,type,a0,a1,a2,a3,a4\na,80,who,b,3,CW,a,b,c,d,e\n"


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        (
            "instances.json",
            json.dumps(COCO),
            "info (1), images.license (1), categories.supercategory (1), annotations.area (1), annotations.attributes",
        ),
        ("shapes.json", json.dumps(LABELME), "version (1), shapes.group_id (1), shapes.flags (1)"),
        ("a.xml", VOC, "size.depth (1), object.difficult (1), object.bndbox.angle (1)"),
        ("captions.json", json.dumps({"a": ENTRY}), "video.url (1)"),
        ("clevrer.json", json.dumps([CLEVRER]), "video.scene_index (1), question.question_id (1), question.choices.program (1)"),
        ("next.csv", NEXT, "frame_count (1)"),
    ],
)
def test_files_name_what_they_say_in_vain(name, text, named, tmp_path):
    written(tmp_path)
    (tmp_path / name).write_text(text)
    assert f"keys that are not read: {named}" in check(str(tmp_path / name), [])


def test_refs_name_what_they_say_in_vain(tmp_path):
    written(tmp_path)
    ref = {"ref_id": 1, "ann_id": 1, "image_id": 1, "split": "train", "sentences": [{"sent": "cat", "tokens": ["cat"]}]}
    (tmp_path / "instances.json").write_text(json.dumps(COCO))
    (tmp_path / "refs(unc).json").write_text(json.dumps([ref | {"file_name": "x.jpg"}]))
    assert "keys that are not read: file_name (1), sentences.tokens (1)" in check(str(tmp_path), [])


def test_data_check_names_columns_for_rewards(tmp_path):
    assert "1 rows, 0 problems" in check(written(tmp_path, swift(image_id=[0])), []), "the first picture's is read"
    row = {"question": "how many?", "answer": "3", "dificulty": 2, "source": "x", "empty": None}
    said = check(written(tmp_path, row, row | {"question": "and here?", "source": None}), [])
    assert "columns for rewards alone: dificulty (2), source (1)" in said and "keys that" not in said


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (swift(image_id=[1]), r"objects\.image_id says that a box lies in picture 1, counted from 0"),
        (swift(image_id=[0, "b"]), r"objects\.image_id says that a box lies in picture b"),
        ({"messages": asked(tool_calls=[{"name": "f"}]), "answer": "x"}, r"messages\.tool_calls: write the call"),
        *(
            (
                {"prompt": asked({"type": "video", "video": "a.mp4", key: 9}), "answer": "x"},
                rf"content\.{key}: leave it out: one rule",
            )
            for key in ("min_pixels", "max_pixels", "total_pixels", "resized_height", "resized_width", "min_frames", "max_frames")
        ),
        ({"messages": asked({"type": "video", "video_start": 1.0}), "answer": "x"}, "video_start and names no clip"),
        ({"messages": asked({"type": "video", "video": "a.mp4", "nframes": 2.5}), "answer": "x"}, "nframes .* a whole number"),
        ({"messages": asked({"type": "video", "video": "a.mp4", "fps": "2"}), "answer": "x"}, "fps .* must be a number"),
        ({"messages": asked({"type": "video", "video": "a.mp4", "fps": float("nan")}), "answer": "x"}, "fps .* must be a number"),
        ({"messages": asked({"type": "video", "video": "a.mp4", "video_end": 60}), "answer": "x"}, "asks for 0 s to 60 s"),
        ({"video": {"video": "a.mp4", "stop": 2}, "question": "q", "answer": "x"}, "asks for stop, which is not known"),
        ({"video": ["a.mp4", "a.mp4"], "video_start": 1.0, "question": "q", "answer": "x"}, "a part of one clip"),
        ({"video": "a.mp4", "video_start": 2.0, "question": "it falls", "span": [1.0, 2.0]}, "a span and shows a part of its"),
    ],
)
def test_keys_that_change_what_a_row_means_are_refused(row, words, tmp_path):
    refused(rf"rows\.jsonl:1: .*{words}", check, written(tmp_path, row), [])


PART = {"type": "video", "video": "a.mp4", "video_start": 2.0, "video_end": 6.0, "fps": 2.0}


def test_parts_of_clips_are_shown(tmp_path):
    rows = (
        {"messages": asked(PART), "answer": "x"},
        {"messages": asked({"type": "video", "video": f"file://{tmp_path}/a.mp4", "nframes": 8}), "answer": "x"},
        {"video": "a.mp4", "video_start": 2.0, "question": "What?", "answer": "x", "fps": 25},
        {"videos": [{"video": "a.mp4", "video_end": 6}, "a.mp4"], "question": "What?", "answer": "x"},
    )
    file = str(tmp_path / "a.mp4")
    assert [load(tmp_path, row)[0].media for row in rows] == [
        (Video(file, 2.0, 6.0, 2.0),),
        (Video(file, frames=8),),
        (Video(file, 2.0),),
        (Video(file, end=6), Video(file)),
    ]


def test_parts_of_clips_survive_a_conversion(tmp_path):
    source = written(tmp_path, {"messages": asked(PART), "answer": "x"})
    convert(source, None, tmp_path / "out.jsonl")
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert row["video"] == {"video": "a.mp4", "video_start": 2.0, "video_end": 6.0, "fps": 2.0}


def test_dialogues_show_parts_of_clips(tmp_path):
    row = {"messages": [*asked(PART), {"role": "assistant", "content": "It falls."}]}
    [prompt] = load(tmp_path, row, by="dialogues")
    assert prompt.media == (Video(str(tmp_path / "a.mp4"), 2.0, 6.0, 2.0),)


def test_every_layout_of_rows_says_what_it_reads_of_objects():
    """A layout with objects in its rows has the rule; flat ones have columns alone."""
    assert [name for name, one in LAYOUTS.items() if one.say is not None and not one.known] == ["questions", "prefix"]


def test_dialogues_refuse_the_same_keys(tmp_path):
    for key, turns in {
        r"messages\.content\.max_pixels": asked({"type": "image", "image": "a.png", "max_pixels": 9}),
        r"messages\.tool_calls": asked(tool_calls=[{"name": "f"}]),
    }.items():
        refused(f"the row has {key}: ", load, tmp_path, {"messages": turns}, by="dialogues")
