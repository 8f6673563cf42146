"""Boxes as tables, Hugging Face, Label Studio and models' own tokens write them."""

import json
from typing import Any

import datasets as hf
import pytest
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.app.commands.data import check
from mmrl.app.commands.options import CheckOptions
from mmrl.app.plugins.resolve import load
from mmrl.data.layouts.answers import token_boxes
from mmrl.data.layouts.source import guess
from tests.support.grounding import convert, load_boxes, load_questions
from tests.support.refused import refused

EVERY = "Locate every {} in the picture."


@pytest.fixture(autouse=True)
def pictures(tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (200, 100), "red").save(tmp_path / name)


def read(path, **settings):
    return [(prompt.text, prompt.answer) for prompt in load_boxes(path, **settings)]


def boxes(label, *corners, space: Any = "pixel"):
    return tuple(Box(x1, y1, x2, y2, space, label) for x1, y1, x2, y2 in corners)


def csv(folder, *lines):
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return folder / "rows.csv"


def test_sides_in_columns_are_gathered_by_picture_and_label(tmp_path):
    header = "filename,width,height,class,xmin,ymin,xmax,ymax,split,pose"
    rows = ["a.png,200,100,cat,1,2,30,40,train,left", "a.png,200,100,dog,5,5,9,9,train,", "b.png,200,100,cat,1,1,2,2,test,left"]
    path = csv(tmp_path, header, *rows, "a.png,200,100,cat,50,60,70.5,80,train,left", "b.png,200,100,,,,,,test,")
    assert guess(path).layout == "sides"
    cats, dogs, other = read(path)
    assert cats == (EVERY.format("cat"), boxes("cat", (1, 2, 30, 40), (50, 60, 70.5, 80)))
    assert dogs == (EVERY.format("dog"), boxes("dog", (5, 5, 9, 9))) and other[1] == boxes("cat", (1, 1, 2, 2))
    assert read(path, split="test") == [other]
    said = check(str(path), ())
    assert "keys that are not read: pose" in said and "1 annotations left out: no box (rows.csv:6)" in said
    path = csv(tmp_path, header, *rows[:1], "a.png,200,100,cat,5,6,7,8,test,left")
    assert read(path, split="test") == [(EVERY.format("cat"), boxes("cat", (5, 6, 7, 8)))]
    path = csv(tmp_path, header, *rows[:1], "a.png,200,99,dog,1,2,30,40,train,left")
    refused(r"says its picture has size \[200, 99\]", read, path)


def test_sides_may_have_two_names_or_be_shares(tmp_path):
    header = "image,label,xmin,ymin,xmax,ymax,x1,y1,x2,y2"
    path = csv(tmp_path, header, "a.png,cat,,,,,1,2,30,40", "a.png,dog,5,6,7,8,1,2,30,40")
    assert [box for _, [box] in read(path)] == [Box(1, 2, 30, 40, label="cat"), Box(5, 6, 7, 8, label="dog")]
    with pytest.raises(ValueError, match=r"holds no rows; 1 annotations left out: no box \(rows.csv:2\)"):
        read(csv(tmp_path, header, "a.png,cat,,,,,,,,"), layout="sides")
    path = csv(tmp_path, "image,label,XMin,XMax,YMin,YMax", "a.png,cat,0.1,0.5,0.2,0.9")
    refused("give space = norm1", read, path)
    assert read(path, space="norm1")[0][1] == boxes("cat", (0.1, 0.2, 0.5, 0.9), space="norm1")
    assert "0 problems" in check(str(path), (), CheckOptions(boxes="norm1"))


def test_sides_with_a_question_and_other_names(tmp_path):
    path = csv(tmp_path, "pic,question,x1,y1,x2,y2", "a.png,where?,1,2,30,40", "a.png,and?,50,60,70,80")
    refused(r"rows.csv:2: no column holds the image \(pic, question, .*: name it with columns.image=NAME", check, str(path), ())
    assert read(path, columns={"image": "pic"}) == [("where?", Box(1, 2, 30, 40)), ("and?", Box(50, 60, 70, 80))]
    path = csv(tmp_path, "image,x1,y1,x2,y2", "a.png,1,2,30,40")
    refused(r"no column holds the label \(image, x1, .*: name it with columns.label=NAME", read, path)
    path = csv(tmp_path, "image,label,x1,y1,x2,y2", "a.png,cat,1,2,wide,40", "a.png,cat,1,,5,40")
    refused(r"x2 is 'wide' and must be a number\n.*y1 is 'None' and must be a number", read, path)


CATS = {"id": [7, 8], "bbox": [[1.0, 2.0, 29.0, 38.0], [50.0, 5.0, 10.0, 5.0]], "category": [0, 1]}
NAMED = [(EVERY.format("cat"), boxes("cat", (1, 2, 30, 40))), (EVERY.format("dog"), boxes("dog", (50, 5, 60, 10)))]


def table(folder):
    """As datasets of the hub are: numbers of classes, whose names are in the features."""
    objects = {"id": hf.Value("int64"), "bbox": hf.List(hf.Value("float32"), 4), "category": hf.ClassLabel(names=["cat", "dog"])}
    features = hf.Features(
        {"image": hf.Image(), "width": hf.Value("int32"), "height": hf.Value("int32"), "objects": hf.List(objects)}
    )
    listed = [dict(zip(CATS, one, strict=True)) for one in zip(*CATS.values(), strict=True)]
    row = {"image": {"bytes": (folder / "a.png").read_bytes(), "path": None}, "width": 200, "height": 100, "objects": listed}
    return hf.Dataset.from_list([row, row | {"objects": []}], features=features)


def test_objects_of_the_hub_have_their_classes_by_name(tmp_path):
    data = table(tmp_path)
    data.save_to_disk(str(tmp_path / "saved"))
    data.to_parquet(str(tmp_path / "rows.parquet"))
    (tmp_path / "folder").mkdir()
    data.to_parquet(str(tmp_path / "folder/train-00000.parquet"))
    for path in (tmp_path / "saved", tmp_path / "rows.parquet", tmp_path / "folder"):
        assert guess(path).layout == "objects" and read(path) == NAMED
    assert "1 rows left out: nothing is asked" in check(str(tmp_path / "rows.parquet"), ())
    for streaming in (False, True):
        found = load("grounding_hf", "datasets")(str(tmp_path / "folder"), streaming=streaming)
        assert [(prompt.text, prompt.answer) for prompt in found] == NAMED


def test_objects_of_a_folder_of_pictures(tmp_path):
    names = {"bbox": CATS["bbox"], "categories": ["cat", "dog"]}
    (tmp_path / "metadata.jsonl").write_text(json.dumps({"file_name": "a.png", "objects": names}))
    assert read(tmp_path) == NAMED
    (tmp_path / "metadata.jsonl").write_text(json.dumps({"file_name": "a.png", "objects": names, "question": "What is there?"}))
    assert read(tmp_path) == [("What is there?", NAMED[0][1] + NAMED[1][1])]
    for objects, words in {
        "numbers": (names | {"categories": [0, 1]}, "a class of objects is 0, and nothing says its name: write the names"),
        "lengths": (names | {"categories": ["cat"]}, "the lists of objects differ in length: bbox 2, categories 1"),
        "no class": ({"bbox": CATS["bbox"]}, "an object of objects must have one of category, categories, label, labels"),
        "no box": (names | {"bbox": [[1, 2], [3, 4]]}, "bbox must be four numbers"),
    }.values():
        (tmp_path / "metadata.jsonl").write_text(json.dumps({"file_name": "a.png", "objects": objects}))
        refused(words, read, tmp_path)


def test_objects_that_may_be_corners_are_asked_for(tmp_path, jsonl):
    corners = [[i, i, 3 * i + 5, 3 * i + 9] for i in range(20)]
    row = {"image": "a.png", "objects": {"bbox": corners, "category": ["cat"] * 20}}
    refused("may be objects or objects_corners: say which, with --as objects", guess, jsonl(row))
    assert read(jsonl(row), layout="objects_corners")[0][1] == boxes("cat", *corners)
    assert read(jsonl(row), layout="objects")[0][1][1] == Box(1, 1, 9, 13, label="cat")
    few = {"image": "a.png", "objects": {"bbox": corners[:19], "category": ["cat"] * 19}}
    assert guess(jsonl(few)).layout == "objects"
    # as a corner and sizes the box would leave its picture
    out = {"image": "a.png", "width": 200, "height": 100, "objects": {"bbox": [[90, 50, 150, 90]], "category": ["cat"]}}
    assert guess(jsonl(out)).layout == "objects_corners"


RECT = {"x": 10, "y": 10, "width": 20, "height": 40, "rotation": 0, "rectanglelabels": ["cat"]}
OF = {"original_width": 200, "original_height": 100, "image_rotation": 0}


def task(*values, image="/data/local-files/?d=my%20cats/a.png", **more):
    results = [{**OF, "id": "x", "type": "rectanglelabels", "value": value} for value in values]
    return {"id": 3, "data": {"image": image, "note": "left"}, "annotations": [{"id": 1, "result": results}], **more}


def studio(folder, *tasks, name="project.json"):
    (folder / "my cats").mkdir(exist_ok=True)
    Image.new("RGB", (200, 100), "red").save(folder / "my cats/a.png")
    (folder / name).write_text(json.dumps(tasks))
    return folder / name


def test_label_studio_is_read_in_pixels_also_in_short(tmp_path):
    polygon = {"points": [[50, 50], [60, 50], [55, 80]], "polygonlabels": ["cat", "pet"]}
    # 40 x 40 pixels, turned by 90 degrees about its upper left corner (20, 10): its right side goes down, its lower one left
    turned = RECT | {"x": 30, "rotation": 90, "rectanglelabels": ["dog"]}
    path = studio(tmp_path, task(RECT, turned, polygon, {"x": 5, "y": 5, "width": 1, "keypointlabels": ["eye"]}))
    assert guess(path).layout == "label_studio"
    found = dict(read(path))
    assert found[EVERY.format("cat")] == boxes("cat", (20, 10, 60, 50), (100, 50, 120, 80))
    assert found[EVERY.format("dog")] == boxes("dog", (20, 10, 60, 50)) and found[EVERY.format("pet")][0].x1 == 100
    said = check(str(path), ())
    assert "1 annotations left out: no rectangle or polygon with a label (project.json:1, result 4)" in said
    done = convert(path, None, tmp_path / "out/rows.jsonl", question="Where is the {label}?")
    assert read(done.out)[0] == ("Where is the cat?", found[EVERY.format("cat")])
    row = {"image": "/data/my cats/a.png", "id": 1, "label": [{**RECT, **OF}], "annotator": 1, "lead_time": 3.5}
    path = studio(tmp_path, row, row | {"id": 2, "label": []})
    assert guess(path).layout == "label_studio"
    assert read(path) == [(EVERY.format("cat"), boxes("cat", (20, 10, 60, 50)))]
    assert "1 pictures left out: no boxes" in check(str(path), ())


def test_what_label_studio_leaves_open_is_refused(tmp_path):
    twice, cancelled = task(RECT), task(RECT)
    twice["annotations"] *= 2
    cancelled["annotations"] = [cancelled["annotations"][0], {**cancelled["annotations"][0], "was_cancelled": True}]
    assert len(read(studio(tmp_path, cancelled))) == 1
    for bad, words in (
        (twice, "annotated 2 times: keep one of its annotations"),
        (task(RECT | {"image_rotation": 90}), "was turned by 90 degrees to be annotated"),
        (task(RECT | {"x": "left"}), "must hold numbers"),
        (task(RECT, image="cat"), "must name one picture, and this one names 0 \\(image, note\\)"),
        (task(RECT, image="https://a.b/cat.png?key=1"), "is a URL, and URLs are not fetched: download it first"),
        (task(RECT | {"rectanglelabels": None}), "holds no rows; .* no rectangle or polygon with a label"),
        (task(7), "does not have the layout of label_studio"),
        (task(RECT | {"x": 95}), "1 of 1 annotations cannot be used"),
    ):
        refused(words, read, studio(tmp_path, bad))


TOKENS = {
    "florence": ("cat<loc_52><loc_332><loc_932><loc_774>", Box(52.5, 332.5, 932.5, 774.5, "norm1000", "cat")),
    "paligemma": ("<loc0512><loc0256><loc0768><loc1023> left cat", Box(0.25, 0.5, 1023 / 1024, 0.75, "norm1", "left cat")),
    "paligemma's segments": (
        "<loc0512><loc0256><loc0768><loc1023><seg001><seg127> cat",
        Box(0.25, 0.5, 1023 / 1024, 0.75, "norm1", "cat"),
    ),
    "qwen": (
        "<|object_ref_start|>the cat<|object_ref_end|><|box_start|>(52,332),(932,774)<|box_end|>",
        Box(52, 332, 932, 774, "norm1000", "the cat"),
    ),
    "qwen, the box alone": ("<|box_start|>(52,332),(932,774)<|box_end|>.", Box(52, 332, 932, 774, "norm1000")),
}


@pytest.mark.parametrize("name", TOKENS)
def test_boxes_in_tokens_of_models(name, jsonl):
    text, box = TOKENS[name]
    turns = [{"from": "human", "value": "<image>\nWhere is it?"}, {"from": "gpt", "value": text}]
    for row in ({"conversations": turns}, {"prefix": "Where is it?", "suffix": text}):
        path = jsonl({"image": "a.png", **row})
        assert guess(path).data_set == "grounding_jsonl" and read(path) == [("Where is it?", box)]


def test_several_boxes_in_tokens(jsonl, tmp_path):
    florence = "cat<loc_10><loc_20><loc_30><loc_40><loc_5><loc_6><loc_70><loc_80>dog<loc_10><loc_20><loc_30><loc_40>"
    path = jsonl({"image": "a.png", "prefix": "<OD>", "suffix": florence})
    cats = boxes("cat", (10.5, 20.5, 30.5, 40.5), (5.5, 6.5, 70.5, 80.5), space="norm1000")
    assert read(path) == [(EVERY.format("cat"), cats), (EVERY.format("dog"), boxes("dog", cats[0].corners, space="norm1000"))]
    done = convert(path, None, tmp_path / "out.jsonl")
    assert read(done.out)[0][1] == boxes("cat", (2.1, 2.05, 6.1, 4.05), (1.1, 0.65, 14.1, 8.05))
    path = jsonl({"image": "a.png", "prefix": "<CAPTION_TO_PHRASE_GROUNDING>a cat", "suffix": "cat<loc_1><loc_2><loc_3><loc_4>"})
    assert read(path)[0][0] == "a cat"
    two = "<loc0001><loc0002><loc0003><loc0004> cat ; <loc0001><loc0002><loc0003><loc0004> dog"
    [(text, answer)] = read(jsonl({"image": "a.png", "prefix": "detect cat ; dog", "suffix": two}))
    assert text == "detect cat ; dog" and [box.label for box in answer] == ["cat", "dog"]


def test_tokens_that_are_no_boxes(jsonl):
    # in linear time
    assert token_boxes("a" * 10**6) is None and token_boxes("<loc_1>" + "a" * 10**6) is None
    for suffix, words in (
        ("cat<loc_1><loc_2><loc_3>", "holds 3 numbers, and a box has four"),
        ("<|box_start|>(9,9),(1,1)<|box_end|>", "has no area"),
    ):
        refused(words, read, jsonl({"image": "a.png", "prefix": "where?", "suffix": suffix}), layout="prefix")
    with pytest.raises(ValueError, match="prefix <CAPTION> is a task of Florence-2 and no question"):
        load_questions(jsonl({"image": "a.png", "prefix": "<CAPTION>", "suffix": "a cat"}))
    asked = ["Is 3 > 2?", "Which is larger: <a> or <b>?", "<a> or <b>?"]
    found = load_questions(jsonl(*({"image": "a.png", "prefix": one, "suffix": "yes"} for one in asked)))
    assert [prompt.text for prompt in found] == asked
    with pytest.raises(ValueError, match="prefix <REGION_TO_OCR><loc_1><loc_2> is a task of Florence-2"):
        load_questions(jsonl({"image": "a.png", "prefix": "<REGION_TO_OCR><loc_1><loc_2>", "suffix": "a"}))
    # boxes within a sentence are its words
    path = jsonl({"image": "a.png", "prefix": "Describe it", "suffix": "A cat <|box_start|>(1,2),(3,4)<|box_end|> sits"})
    assert guess(path).data_set == "qa_jsonl"


def test_convert_keeps_its_promise_of_pixels_and_plain_questions(jsonl, tmp_path):
    row = {
        "messages": [{"role": "user", "content": "<image>\nWhere?"}, {"role": "assistant", "content": "<bbox>"}],
        "images": ["a.png"],
    }
    shares = row | {"objects": {"ref": [], "bbox": [[0.1, 0.2, 0.5, 0.9]], "bbox_type": "norm1"}}
    done = convert(jsonl(shares), None, tmp_path / "out.jsonl")
    line = json.loads(done.out.read_text())
    assert (line["question"], line["box"], line["image"]) == ("Where?", [20, 20, 100, 90], "a.png") and "space" not in line
    own = jsonl({"image": "b.png", "question": "<image> in the middle <image>", "box": [100, 200, 500, 900], "space": "norm1000"})
    refused("2 <image> markers for 1 pictures", convert, own, None, tmp_path / "own.jsonl")
    own = jsonl({"image": "b.png", "question": "Where?", "boxes": [[100, 200, 500, 900]], "space": "norm1000"})
    assert json.loads(convert(own, None, tmp_path / "own.jsonl").out.read_text())["boxes"] == [[20, 20, 100, 90]]
    (tmp_path / "b.png").unlink()
    refused(r"boxes.jsonl:1: picture .*b.png does not exist", convert, own, None, tmp_path / "gone.jsonl")
    asked = jsonl({"image": "a.png", "conversations": [{"from": "human", "value": "<image>\nHow many?"}], "answer": 3})
    assert json.loads(convert(asked, None, tmp_path / "qa.jsonl").out.read_text())["question"] == "How many?"
