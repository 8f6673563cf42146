"""Files that are written: split so that what shares a picture stays together, converted, and with --fix of right rows alone."""

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from typer.testing import CliRunner

from mmrl.answers.boxes.box import Box
from mmrl.app.cli.groups import data
from mmrl.app.commands.data import CheckOptions, check, split_by_shares
from mmrl.data.files.paths import write_jsonl
from mmrl.data.files.pictures import content_hash
from mmrl.data.layouts.habits import BoxHabits
from tests.support.grounding import check_file, convert, load_boxes, load_questions, split
from tests.support.refused import refused
from tests.support.videos import even, write_video


@pytest.fixture
def many(tmp_path, jsonl):
    """20 pictures, 3 rows each; picture 7 has a twin under another name."""
    rows = []
    for i in range(20):
        Image.new("RGB", (30, 20), (i * 10, 0, 0)).save(tmp_path / f"{i}.png")
        rows += [{"image": f"{i}.png", "question": f"q{k}", "box": [0, 0, 5, 5 + k]} for k in range(3)]
    Image.open(tmp_path / "7.png").save(tmp_path / "twin.bmp")
    return jsonl(*rows, {"image": "twin.bmp", "question": "q0", "box": [0, 0, 5, 5]})


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def hashes(path):
    shown = [row["image"] for row in lines(path)]
    names = [name for one in shown for name in (one if isinstance(one, list) else [one])]
    return {content_hash(path.parent / name) for name in names}


def test_no_picture_is_in_two_parts(many, tmp_path):
    parts = split(many, tmp_path / "out/deep", {"train": 0.8, "val": 0.1, "test": 0.1}, seed=3)
    assert sum(part.num_rows for part in parts) == 61
    assert [part.num_rows for part in parts] == pytest.approx([48.8, 6.1, 6.1], abs=4)
    found = [hashes(part.path) for part in parts]
    assert not found[0] & found[1] and not found[0] & found[2] and not found[1] & found[2]
    assert [part.num_pictures for part in parts] == [len(some) for some in found]
    assert sum(map(len, found)) == 20
    # the parts load from where they are, though the pictures did not move
    read = load_boxes(tmp_path / "out/deep", split="train")
    assert len(read) == parts[0].num_rows


def test_the_seed_decides_and_not_the_order_of_rows(many, tmp_path, jsonl):
    def first(path, out, seed=0):
        return split(path, tmp_path / out, {"train": 0.7, "test": 0.3}, seed)[0].path

    same, again, other = first(many, "a"), first(many, "b"), first(many, "c", 1)
    assert same.read_text() == again.read_text() != other.read_text()
    turned = jsonl(*reversed(many.read_text().splitlines()), name="turned.jsonl")
    assert hashes(first(turned, "d")) == hashes(same)


def test_pictures_of_one_row_stay_together(tmp_path, picture, jsonl):
    names = [picture(f"{i}.png", colour=(i, i, i)) for i in range(12)]
    chain = [{"image": [names[i], names[i + 1]], "question": "same?"} for i in range(0, 5)]
    single = [{"image": name, "question": "q"} for name in names[6:]]
    parts = split(jsonl(*chain, *single), tmp_path / "out", {"train": 0.5, "test": 0.5})
    first, second = (hashes(part.path) for part in parts)
    assert not first & second
    tied = {content_hash(tmp_path / name) for name in names[:6]}
    assert tied <= first or tied <= second


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"a": 0.5}, "add up to 1"),
        ({"a": 1.5, "b": -0.5}, "above 0"),
        ({}, "add up"),
        ({"a": 0.99999, "b": 0.00001}, "'b' would be empty"),
    ],
)
def test_mistakes_are_named_and_write_nothing(many, tmp_path, parts, says):
    refused(says, split, many, tmp_path / "out", parts)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        (["0.9", "0.1"], r"'0\.9' is no part: write NAME=SHARE for each, such as train=0\.9 test=0\.1"),
        (["train=0.9", "test=0.2"], r"train=0\.9 test=0\.2: parts must have shares above 0 that add up to 1"),
    ],
)
def test_shares_are_told_how_to_be_written(many, tmp_path, shares, words):
    refused(words, split_by_shares, many, tmp_path / "out", shares)


def test_rows_that_cannot_be_dealt_out_are_named(jsonl, tmp_path):
    for rows, words in (
        ([{"question": "q", "box": [1, 2, 3, 4]}, {"image": "gone.png"}], r"(?s):1: column 'image' .*:2: picture .*gone\.png"),
        ([{"question": "where?", "box": [1, 2, 3, 4]}], "rows with boxes and without picture cannot be dealt out"),
        ([{"problem": "?", "path": "0.mp4", "solution": "A"}], r"is video_r1 .* which only the data set video_r1 reads"),
    ):
        refused(words, split, jsonl(*rows), tmp_path / "out", {"a": 1.0})


def test_writing_fails_as_a_whole(tmp_path):
    old = tmp_path / "a.jsonl"
    old.write_text("old\n")
    with pytest.raises(TypeError):
        write_jsonl({old: [{"x": 1}], tmp_path / "b.jsonl": [{"x": 1}, {"x": object()}]})
    assert old.read_text() == "old\n"
    assert [path.name for path in Path(tmp_path).iterdir()] == ["a.jsonl"]
    write_jsonl({old: [{"x": "é"}, {"x": 2}]})
    assert old.read_text(encoding="utf-8") == '{"x": "é"}\n{"x": 2}\n'


def test_two_layouts_are_refused_unless_one_is_said(picture, jsonl, tmp_path):
    names = [picture(f"{i}.png", colour=(i * 9, 0, 0)) for i in range(4)]
    turns = {"messages": [{"role": "user", "content": "Where?"}], "conversations": [{"from": "human", "value": "There?"}]}
    file = jsonl(*({"image": name, "answer": 1, **turns} for name in names))
    words, shares = "may be messages or llava: say which, with --as messages or --as llava", ["a=0.5", "b=0.5"]
    refused(words, split_by_shares, file, tmp_path / "out", shares)
    said = CliRunner().invoke(data, ["split", str(file), str(tmp_path / "out"), *shares, "--as", "llava"]).output
    assert "read as llava: LLaVA's conversations of human and gpt; as you say" in said
    assert {row["question"] for row in lines(tmp_path / "out/a.jsonl")} == {"There?"}


def test_clips_stay_whole(tmp_path, jsonl):
    for i in range(4):
        write_video(tmp_path / f"{i}.mp4", even(8))
        (tmp_path / f"{i}.mp4").write_bytes((tmp_path / f"{i}.mp4").read_bytes() + bytes([i]))
    file = jsonl(*({"video": f"{i % 4}.mp4", "question": f"{i}?", "answer": 3} for i in range(8)))
    a, b = ({row["video"] for row in lines(part.path)} for part in split(file, tmp_path / "own", {"a": 0.5, "b": 0.5}))
    assert len(a) == len(b) == 2 and not a & b


def test_paths_are_relative_where_the_files_lie_below_the_output(picture, jsonl, tmp_path):
    names = [picture(f"pictures/{i}.png", colour=(i * 60, 0, 0)) for i in range(2)]
    file = jsonl(*({"image": str(tmp_path / name), "question": "?", "answer": 1} for name in names))
    split(file, tmp_path, {"a": 0.5, "b": 0.5})
    assert {row["image"] for part in "ab" for row in lines(tmp_path / f"{part}.jsonl")} == set(names)
    assert "outside" not in str(convert(file, None, tmp_path / "c.jsonl"))
    assert [row["image"] for row in lines(tmp_path / "c.jsonl")] == names
    out = tmp_path / "out"
    [part] = split(file, out, {"a": 1.0})
    assert str(part).endswith(f"\n  2 files lie outside {out} and are named by absolute paths: --copy brings them along")


def test_texts_without_pictures_are_dealt_out_and_a_column_of_splits_says_the_part(jsonl, tmp_path, picture):
    file = jsonl(*({"question": f"{i % 4} + 1?", "answer": i} for i in range(8)))
    a, b = split(file, tmp_path, {"a": 0.5, "b": 0.5})
    assert (a.num_rows, a.num_pictures, b.num_rows) == (4, 0, 4)
    assert not {row["question"] for row in lines(a.path)} & {row["question"] for row in lines(b.path)}
    rows = [{"image": picture(f"{i}.png", colour=(i * 9, 0, 0)), "question": "q", "answer": 1, "split": "old"} for i in range(4)]
    parts = split(jsonl(*rows[:3], {**rows[3], "split": None}), tmp_path / "out", {"a": 0.5, "b": 0.5})
    found = [row["split"] for part in parts for row in lines(part.path)]
    assert sorted(map(str, found)) in (["None", "a", "b", "b"], ["None", "a", "a", "b"])


INSTANCES = {
    "images": [
        {"id": i, "file_name": f"{name}.png", "width": 64, "height": 48} for i, name in ((1, "a"), (2, "b"), (9, "empty"))
    ],
    "categories": [{"id": 3, "name": "cat"}, {"id": 4, "name": "dog"}, {"id": 5, "name": "bird"}],
    "annotations": [
        {"id": 11, "image_id": 1, "category_id": 3, "bbox": [1, 2, 10, 20]},
        {"id": 12, "image_id": 1, "category_id": 3, "bbox": [40, 20, 24.5, 20]},
        {"id": 13, "image_id": 1, "category_id": 4, "bbox": [0, 0, 5, 5], "iscrowd": 0},
        {"id": 14, "image_id": 2, "category_id": 4, "bbox": [0, 0, 5, 5], "iscrowd": 1},
        {"id": 15, "image_id": 2, "category_id": 4, "bbox": [0, 0, 0, 5]},
        {"id": 16, "image_id": 2, "category_id": 4, "bbox": [60, 0, 20, 5]},
        {"id": 17, "image_id": 2, "category_id": 3, "bbox": [2, 2, 4, 4]},
        # annotations that cannot be used are a problem above a tenth
        *({"id": 100 + i, "image_id": 2, "category_id": 5, "bbox": [i, i, 9, 9]} for i in range(14)),
    ],
}
REFS = [
    {"ref_id": 5, "ann_id": 11, "image_id": 1, "split": "train", "sentences": [{"sent": "left cat"}, {"sent": "small one"}]},
    {"ref_id": 6, "ann_id": 17, "image_id": 2, "split": "testA", "sentences": [{"sent": "the cat"}]},
    {"ref_id": 7, "ann_id": 15, "image_id": 2, "split": "testA", "sentences": [{"sent": "nothing"}]},
    *(
        {"ref_id": 20 + i, "ann_id": 100 + i, "image_id": 2, "split": "testB", "sentences": [{"sent": "a bird"}]}
        for i in range(7)
    ),
]


@pytest.fixture
def coco_file(tmp_path, picture):
    """A COCO layout; gives its instances file."""
    picture("images/a.png")
    picture("images/b.png")
    path = tmp_path / "annotations/instances.json"
    path.parent.mkdir()
    path.write_text(json.dumps(INSTANCES))
    return path


def test_coco(coco_file, tmp_path):
    done = convert(coco_file, "coco", tmp_path / "out/boxes.jsonl", tmp_path / "images")
    assert (done.num_rows, done.num_pictures, done.missing_pictures) == (4, 2, 0)
    assert done.notes == {
        "annotations left out: crowd (instances.json, annotation 14)": 1,
        "annotations left out: no area (instances.json, annotation 15)": 1,
        "annotations left out: outside the picture (instances.json, annotation 16)": 1,
        "pictures left out: no boxes": 1,
        "annotations cut at the picture's edge": 1,
    }
    assert check_file(done.out).ok
    cats, dogs, other, _ = load_boxes(done.out)
    assert cats.answer == (Box(1, 2, 11, 22, label="cat"), Box(40, 20, 64, 40, label="cat"))
    assert cats.text == "Locate every cat in the picture."
    assert dogs.answer == (Box(0, 0, 5, 5, label="dog"),)
    assert other.media == (str(tmp_path / "images/b.png"),)
    assert "1 annotations left out: crowd" in str(done)


@pytest.mark.parametrize("suffix", ["p", "json"])
def test_refcoco(coco_file, tmp_path, suffix):
    refs = coco_file.parent / f"refs(unc).{suffix}"
    refs.write_bytes(pickle.dumps(REFS, protocol=2) if suffix == "p" else json.dumps(REFS).encode())
    done = convert(coco_file.parent, "refcoco", tmp_path / "refs.jsonl", tmp_path / "images")
    assert done.num_rows == 10 and done.notes == {f"annotations left out: no area ({refs.name}, ref 7)": 1}
    one, two = load_boxes(done.out, split="train")
    assert (one.id, one.text, one.answer) == ("5-0", "left cat", Box(1, 2, 11, 22))
    assert (two.id, two.text, two.answer) == ("5-1", "small one", Box(1, 2, 11, 22))
    assert convert(refs, "refcoco", tmp_path / "again.jsonl", tmp_path / "images").num_rows == 10


def test_mistakes_are_named_and_leave_no_file(coco_file, tmp_path):
    out = tmp_path / "boxes.jsonl"
    refused(r"no layout is called .kitti.: choose one of boxes, .*coco", convert, coco_file, "kitti", out)
    refused(r"gone\.json does not exist", convert, tmp_path / "gone.json", "coco", out, error=FileNotFoundError)
    refused("one refs file, but there is none", convert, coco_file.parent, "refcoco", out)
    four = r"annotation 8 has bbox .*: it must be four numbers"
    odd = {"annotations": INSTANCES["annotations"][3:4]}
    for said, words in (
        ('{"images": [], "categories": []}', r"odd\.json does not have the layout of coco: 'annotations' is missing"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (json.dumps(INSTANCES | odd), r"gives no rows .*crowd.*nothing was written"),
        *(
            (json.dumps(INSTANCES | {"annotations": [{"id": 8, "image_id": 1, "bbox": [x, *(1, 2, 3)[:more]]}]}), four)
            for x, more in (("a", 3), (float("nan"), 3), (10**400, 3), (1, 2), (1, 1))
        ),
    ):
        (tmp_path / "odd.json").write_text(said)
        refused(words, convert, tmp_path / "odd.json", "coco", out)
    assert not out.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["annotations", "images", "odd.json"]


def test_missing_pictures_are_counted_and_a_conversion_without_any_is_refused(coco_file, tmp_path):
    out = tmp_path / "boxes.jsonl"
    words = r"none of the 2 pictures of .* is below .*annotations \(the first is .*a\.png\): give --image"
    refused(words, convert, coco_file, "coco", out)
    assert not out.exists()
    (tmp_path / "images/b.png").unlink()
    done = convert(coco_file, "coco", out, tmp_path / "images")
    assert done.missing_pictures == 1 and "1 pictures not found: give image_root" in str(done)


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
    check(str(path), [], CheckOptions(fix=tmp_path / "in/beside.jsonl"))
    assert lines(tmp_path / "in/beside.jsonl")[0]["image"] == "a.png"


SPELLINGS = {
    "xywh": ([[20, 20, 10, 20], [1, 2, 30, 40]], [[20, 20, 30, 40], [1, 2, 31, 42]]),
    "norm1": ([[0.25, 0.25, 0.5, 0.5], [0, 0, 1, 1]], [[16, 12, 32, 24], [0, 0, 64, 48]]),
    "norm1000": ([[250, 250, 500, 500], [10, 20, 30, 40]], [[16, 12, 32, 24], [0.64, 0.96, 1.92, 1.92]]),
}
"""Word of --boxes -> boxes, and their corners in pixels."""
SUSPICIONS = {
    "xywh": "1 of 2 boxes are no two corners, and all fit as x, y, width and height",
    "norm1": "all 2 boxes lie within 0 to 1",
    "norm1000": "1 of 2 boxes lie outside their pictures, and none goes beyond 1000",
}


@pytest.mark.parametrize("told", SPELLINGS)
def test_boxes_written_otherwise_are_reported_and_converted_when_told(told, picture, jsonl, tmp_path):
    picture("a.png")
    (boxes, corners), words = SPELLINGS[told], SUSPICIONS[told]
    path, out = jsonl(*map(row, boxes)), tmp_path / "fixed.jsonl"
    refused(rf"{words}.*: give --boxes {told}", check, str(path), [])
    refused(rf"{words}.*; nothing was written", check, str(path), [], CheckOptions(fix=out))
    assert not out.exists()
    assert "2 rows, 0 problems" in check(str(path), [], CheckOptions(boxes=told))
    check(str(path), [], CheckOptions(boxes=told, fix=out))
    assert [line["box"] for line in lines(out)] == corners
    assert [prompt.answer for prompt in load_boxes(out)] == [Box(*box) for box in corners]


def test_two_words_of_boxes_and_a_single_wrong_box_which_is_no_habit(picture, jsonl, tmp_path):
    picture("a.png")
    path = jsonl(row([500, 500, 100, 250]))
    check(str(path), [], CheckOptions(boxes="xywh,norm1000", fix=tmp_path / "fixed.jsonl"))
    assert lines(tmp_path / "fixed.jsonl")[0]["box"] == [32, 24, 38.4, 36]
    refused("--boxes xyhw: say xyxy, xywh, pixel, norm1, norm1000", check, str(path), [], CheckOptions(boxes="xyhw"))
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
    assert load_questions(tmp_path / "fixed.jsonl")[0].answer == "red"
    refused(r"--boxes xywh is for rows with boxes, and .* is read as llava", check, str(path), [], CheckOptions(boxes="xywh"))


def test_parts_of_clips_stay_parts_and_their_markers_are_taken_off(jsonl, tmp_path):
    write_video(tmp_path / "a.mp4", even(40))
    part = {"type": "video", "video": "a.mp4", "video_start": 0.2, "fps": 2}
    turns = [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}, {"role": "assistant", "content": "3"}]
    row = {"question": "what?", "answer": "3", "video": "a.mp4", "video_start": 0.2, "video_end": 1.0}
    for rows in ([row, row | {"video_end": None}], [{"messages": turns}]):
        path = jsonl(*rows)
        check(str(path), (), CheckOptions(fix=tmp_path / "out.jsonl"))
        clips = [[prompt.media for prompt in load_questions(one)] for one in (path, tmp_path / "out.jsonl")]
        assert clips[0] == clips[1] and clips[0][0][0].start == 0.2
    clip = {"video": "a.mp4", "video_start": 2.0}
    path = jsonl({"video": clip, "question": "<video>\nWhat falls?", "answer": "a ball"})
    assert json.loads(convert(path, None, tmp_path / "out.jsonl").out.read_text())["question"] == "What falls?"


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
    good = {"pic": cell, "question": "where?", "box": [0.25, 0.25, 0.5, 0.5]}
    rows = pa.Table.from_pylist([good, {"pic": {"bytes": b"no"}, "question": "?", "box": [0.0] * 4}])
    parquet.write_table(rows, tmp_path / "in.parquet")
    told = CheckOptions(boxes="norm1", fix=tmp_path / "out/fixed.jsonl")
    assert "1 rows written, 1 of 2 left out" in check(str(tmp_path / "in.parquet"), ["columns.image=pic"], told)
    [line] = lines(tmp_path / "out/fixed.jsonl")
    assert line["box"] == [16, 12, 32, 24] and line["image"].startswith("fixed_pictures/") and "pic" not in line
    assert check_file(tmp_path / "out/fixed.jsonl").ok


@pytest.mark.parametrize(
    ("source", "out", "words"),
    [
        ("boxes.jsonl", "boxes.jsonl", "is the file that is read: write another one"),
        ("boxes.jsonl", "fixed.json", r"is to be JSONL: call it fixed\.jsonl"),
        ("gone.jsonl", "fixed.jsonl", r"(?s)no row of .* is right, so nothing .*:1: picture .*gone\.png does not exist"),
        ("prompts.txt", "fixed.jsonl", "--fix is for rows with boxes or questions, and not for the layout prompts: leave it out"),
    ],
)
def test_what_cannot_be_written_is_refused(source, out, words, picture, jsonl, tmp_path):
    jsonl(row([1, 2, 30, 40], picture("a.png")))
    jsonl(row([1, 2, 3, 4], "gone.png"), name="gone.jsonl")
    jsonl("a fox", name="prompts.txt")
    refused(words, check, str(tmp_path / source), [], CheckOptions(fix=tmp_path / out))


def test_every_turn_of_a_conversation(picture, jsonl, tmp_path):
    said = zip(["user", "assistant"] * 2, ["<image>a?", "1", "b?", "2"], strict=True)
    turns, out = [{"role": role, "content": text} for role, text in said], tmp_path / "fixed.jsonl"
    path = jsonl({"messages": turns, "images": [picture("a.png")]})
    refused("the conversation has 2 questions", check, str(path), [])
    check(str(path), [], CheckOptions(turns="each", fix=out))
    assert [(line["question"], line["answer"]) for line in lines(out)] == [("a?", "1"), ("b?", "2")]


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
    assert (habits.suspicion is None) == (sentence is None) and (sentence or "") in (habits.suspicion or "")
