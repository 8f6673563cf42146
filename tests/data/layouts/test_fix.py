"""`--fix`: the rows that are right are written, the others are counted, and boxes that look written otherwise stop it."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from mmrl.answers.boxes.box import Box
from mmrl.app.commands.data import CheckOptions, check
from mmrl.app.plugins.resolve import load
from mmrl.data.layouts.habits import BoxHabits
from tests.support.grounding import check_file
from tests.support.videos import even, write_video


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def row(box, image="a.png", **more):
    return {"image": image, "question": f"where {box}?", "box": box, **more}


def test_right_rows_are_written_and_wrong_ones_counted(picture, jsonl, tmp_path):
    picture("in/a.png")
    good = row([1, 2, 30, 40], id="first", colour="red", more={"a": [1, None]})
    rows = [good, row([1, 2, 3, 4], "gone.png"), row([1, 2, 3, 4], "lost.png"), "{", row([5, 5, 70, 40]), good | {"id": "again"}]
    path = jsonl(*rows, name="in/boxes.jsonl")
    said = check(str(path), [], CheckOptions(fix=tmp_path / "out/fixed.jsonl"))
    assert "fixed.jsonl: 1 rows written, 5 of 6 left out" in said
    assert "2 x picture .. does not exist" in said and "1 x the row says exactly what one before it says" in said
    assert "left out: boxes.jsonl:4: this is not JSON" in said
    [line] = lines(tmp_path / "out/fixed.jsonl")
    assert line == {
        "id": "first", "image": str(tmp_path / "in/a.png"), "question": "where [1, 2, 30, 40]?", "box": [1, 2, 30, 40],
        "colour": "red", "more": {"a": [1, None]}, "size": [64, 48],
    }  # fmt: skip
    assert check_file(tmp_path / "out/fixed.jsonl").ok
    assert (
        check(str(path), [], CheckOptions(fix=tmp_path / "in/beside.jsonl"))
        and lines(tmp_path / "in/beside.jsonl")[0]["image"] == "a.png"
    )


SPELLINGS = {
    "xywh": (
        [[20, 20, 10, 20], [1, 2, 30, 40]],
        "xywh",
        r"1 of 2 boxes are no two corners, and all fit as x, y, width and height",
    ),
    "norm1": ([[0.25, 0.25, 0.5, 0.5], [0, 0, 1, 1]], "norm1", "all 2 boxes lie within 0 to 1"),
    "norm1000": (
        [[250, 250, 500, 500], [10, 20, 30, 40]],
        "norm1000",
        "1 of 2 boxes lie outside their pictures, and none goes beyond 1000",
    ),
}
CORNERS = {
    "xywh": [[20, 20, 30, 40], [1, 2, 31, 42]],
    "norm1": [[16, 12, 32, 24], [0, 0, 64, 48]],
    "norm1000": [[16, 12, 32, 24], [0.64, 0.96, 1.92, 1.92]],
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_boxes_written_otherwise_are_reported_and_converted_when_told(name, picture, jsonl, tmp_path):
    picture("a.png")
    boxes, told, words = SPELLINGS[name]
    path, out = jsonl(*map(row, boxes)), tmp_path / "fixed.jsonl"
    with pytest.raises(ValueError, match=rf"{words}.*: give --boxes {told}"):
        check(str(path), [])
    with pytest.raises(ValueError, match=rf"{words}.*; nothing was written"):
        check(str(path), [], CheckOptions(fix=out))
    assert not out.exists()
    assert "2 rows, 0 problems" in check(str(path), [], CheckOptions(boxes=told))
    check(str(path), [], CheckOptions(boxes=told, fix=out))
    assert [line["box"] for line in lines(out)] == CORNERS[name]
    assert [prompt.answer for prompt in load("grounding_jsonl", "datasets")(out)] == [Box(*box) for box in CORNERS[name]]


def test_two_words_of_boxes(picture, jsonl, tmp_path):
    picture("a.png")
    path = jsonl(row([500, 500, 100, 250]))
    check(str(path), [], CheckOptions(boxes="xywh,norm1000", fix=tmp_path / "fixed.jsonl"))
    assert lines(tmp_path / "fixed.jsonl")[0]["box"] == [32, 24, 38.4, 36]
    with pytest.raises(ValueError, match="--boxes xyhw: say xyxy, xywh, pixel, norm1, norm1000"):
        check(str(path), [], CheckOptions(boxes="xyhw"))


def test_a_single_wrong_box_is_no_habit(picture, jsonl, tmp_path):
    picture("a.png")
    rows = [row([1, 2, 50, 40]), row([30, 20, 64, 48]), row([40, 40, 30, 45])]
    said = check(str(jsonl(*rows)), [], CheckOptions(fix=tmp_path / "fixed.jsonl"))
    assert "2 rows written, 1 of 3 left out" in said


def test_habits():
    habits = BoxHabits()
    assert habits.suspicion is None
    for i in range(20):
        habits.add([10.0 * i, 10.0, 500.0 + 20 * i, 990.0], (4000, 3000))
    assert habits.suspicion is not None and "may be thousandths: give --boxes norm1000, or --boxes xyxy" in habits.suspicion
    habits.add([10.0, 10.0, 2000.0, 1500.0], (4000, 3000))
    assert habits.suspicion is None


def test_questions_and_other_layouts_are_fixed_too(picture, jsonl, tmp_path):
    picture("a.png")
    turns = [{"from": "human", "value": "<image>Which colour?"}, {"from": "gpt", "value": "red"}]
    path = jsonl({"image": "a.png", "conversations": turns}, {"image": "b.png", "conversations": turns}, {"conversations": [{}]})
    said = check(str(path), [], CheckOptions(fix=tmp_path / "fixed.jsonl"))
    assert "read as llava" in said and "1 rows written, 2 of 3 left out" in said
    [line] = lines(tmp_path / "fixed.jsonl")
    assert line == {"id": "boxes-1", "image": "a.png", "question": "Which colour?", "answer": "red", "kind": "text"}
    assert load("qa_jsonl", "datasets")(tmp_path / "fixed.jsonl")[0].answer == "red"
    with pytest.raises(ValueError, match=r"--boxes xywh is for rows with boxes, and .* is read as llava"):
        check(str(path), [], CheckOptions(boxes="xywh"))


def test_parts_of_clips_stay_parts(jsonl, tmp_path):
    write_video(tmp_path / "a.mp4", even(40))
    part = {"type": "video", "video": "a.mp4", "video_start": 0.2, "fps": 2}
    turns = [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}, {"role": "assistant", "content": "3"}]
    row = {"question": "what?", "answer": "3", "video": "a.mp4", "video_start": 0.2, "video_end": 1.0}
    for rows in ([row, row | {"video_end": None}], [{"messages": turns}]):
        path = jsonl(*rows)
        check(str(path), (), CheckOptions(fix=tmp_path / "out.jsonl"))
        clips = [[prompt.media for prompt in load("qa_jsonl", "datasets")(one)] for one in (path, tmp_path / "out.jsonl")]
        assert clips[0] == clips[1] and clips[0][0][0].start == 0.2


def test_coco_and_parquet_are_fixed_too(picture, tmp_path):
    picture("a.png")
    annotations = [
        {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 10, 20]},
        {"id": 2, "image_id": 9, "category_id": 3, "bbox": [1, 2, 10, 20]},
        {"id": 3, "image_id": 1, "category_id": 3, "bbox": [1, 2, 0, 20]},
    ]
    images = [{"id": 1, "file_name": "a.png", "width": 64, "height": 48}]
    coco = {"images": images, "annotations": annotations, "categories": [{"id": 3, "name": "cat"}]}
    (tmp_path / "instances.json").write_text(json.dumps(coco))
    said = check(str(tmp_path / "instances.json"), [], CheckOptions(fix=tmp_path / "fixed.jsonl"))
    assert "1 rows written, 1 of 2 left out" in said and "1 annotations left out: no area" in said
    assert "left out: instances.json, annotation 2: picture 9 is not listed in the file" in said
    assert lines(tmp_path / "fixed.jsonl")[0]["boxes"] == [{"bbox_2d": [1, 2, 11, 22], "label": "cat"}]
    cell = {"bytes": (tmp_path / "a.png").read_bytes(), "path": "/etc/passwd"}
    rows = [
        {"pic": cell, "question": "where?", "box": [0.25, 0.25, 0.5, 0.5]},
        {"pic": {"bytes": b"no"}, "question": "?", "box": [0.0] * 4},
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    told = CheckOptions(boxes="norm1", fix=tmp_path / "out/fixed.jsonl")
    assert "1 rows written, 1 of 2 left out" in check(str(tmp_path / "in.parquet"), ["columns.image=pic"], told)
    [line] = lines(tmp_path / "out/fixed.jsonl")
    assert line["box"] == [16, 12, 32, 24] and line["image"].startswith("fixed_pictures/") and "pic" not in line
    assert check_file(tmp_path / "out/fixed.jsonl").ok


def test_what_cannot_be_written_is_refused(picture, jsonl, tmp_path):
    picture("a.png")
    path = jsonl(row([1, 2, 30, 40]))
    with pytest.raises(ValueError, match="is the file that is read: write another one"):
        check(str(path), [], CheckOptions(fix=path))
    with pytest.raises(ValueError, match=r"is to be JSONL: call it fixed\.jsonl"):
        check(str(path), [], CheckOptions(fix=tmp_path / "fixed.json"))
    with pytest.raises(ValueError, match=r"(?s)no row of .* is right, so nothing .*:1: picture .*gone\.png does not exist"):
        check(str(jsonl(row([1, 2, 3, 4], "gone.png"))), [], CheckOptions(fix=tmp_path / "fixed.jsonl"))
    (tmp_path / "prompts.txt").write_text("a fox\n")
    with pytest.raises(
        ValueError, match="--fix is for rows with boxes or questions, and not for the layout prompts: leave it out"
    ):
        check(str(tmp_path / "prompts.txt"), [], CheckOptions(fix=tmp_path / "fixed.jsonl"))


def test_every_turn_of_a_conversation(picture, jsonl, tmp_path):
    picture("a.png")
    turns = [
        {"role": role, "content": text}
        for role, text in zip(["user", "assistant"] * 2, ["<image>a?", "1", "b?", "2"], strict=True)
    ]
    path = jsonl({"messages": turns, "images": ["a.png"]})
    with pytest.raises(ValueError, match="the conversation has 2 questions"):
        check(str(path), [])
    check(str(path), [], CheckOptions(turns="each", fix=tmp_path / "fixed.jsonl"))
    assert [(line["question"], line["answer"]) for line in lines(tmp_path / "fixed.jsonl")] == [
        ("a?", "1"),
        ("b?", "2"),
    ]


@pytest.mark.parametrize(
    ("boxes", "sentence"),
    [
        ([[250, 250, 500, 500], [300, 300, 1500, 900]], None),
        ([[250, 250, 500, 500], [1, 2, 30, 40]], "1 of 2 boxes lie outside their pictures"),
        ([[250, 250, 500, 500], [1, 2, 30, 40], [1, 2, 30, 41]], None),
        ([[250, 250, 500, 500], *([1, 2, 30, 40] for _ in range(19))], "1 of 20 boxes lie outside their pictures"),
        ([[250, 250, 500, 500], *([1, 2, 30, 40] for _ in range(20))], None),
        ([[20, 20, 10, 20], [1, 2, 30, 30]], "1 of 2 boxes are no two corners"),
        ([[1, 2, 30, 30], [1, 2, 31, 31]], None),
        ([[20, 20, 10, 20], [40, 20, 50, 60]], None),
    ],
)
def test_no_habit_is_read_into_boxes_that_fit_no_spelling(boxes, sentence):
    habits = BoxHabits()
    for box in boxes:
        habits.add([float(side) for side in box], (64, 48))
    if sentence is None:
        assert habits.suspicion is None
    else:
        assert sentence in (habits.suspicion or "")
