"""What annotation tools leave in their files: turned boxes, outlines alone, one name twice, losses, sizes before EXIF turns."""

import json

import numpy as np
import pytest
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.app.commands.data import check
from mmrl.app.commands.options import CheckOptions
from mmrl.app.plugins.resolve import load
from mmrl.core.samples import MediaSize
from mmrl.policies.shared.pictures import open_picture

BONE = {"id": 1, "name": "bone"}
EXIF = 274


def coco(folder, *annotations, categories=(BONE,), size=(200, 200)):
    """An instances file of one picture of 200 x 200 pixels; gives its path."""
    Image.new("RGB", (200, 200), "red").save(folder / "1.jpg")
    image = {"id": 0, "file_name": "1.jpg", "width": size[0], "height": size[1]}
    listed = [{"id": i, "image_id": 0, "category_id": 1, **one} for i, one in enumerate(annotations)]
    path = folder / "instances.json"
    path.write_text(json.dumps({"images": [image], "categories": list(categories), "annotations": listed}))
    return path


def answers(path):
    return [box.corners for prompt in load("grounding_jsonl", "datasets")(path) for box in prompt.answer]


@pytest.mark.parametrize(
    ("annotation", "corners"),
    [
        # 40 x 20 around (100, 100), turned by 90 degrees, and by 30:
        # 40 cos 30 + 20 sin 30 = 44.641, 40 sin 30 + 20 cos 30 = 37.3205
        ({"bbox": [80, 90, 40, 20], "attributes": {"rotation": 90.0}}, (90, 80, 110, 120)),
        ({"bbox": [80, 90, 40, 20], "attributes": {"rotation": 330.0}}, (77.6795, 81.3397, 122.3205, 118.6603)),
        ({"bbox": [80, 90, 40, 20], "attributes": {"occluded": True}}, (80, 90, 120, 110)),
        ({"segmentation": [[90, 80, 110, 80, 110, 100], [90, 120, 95, 100]]}, (90, 80, 110, 120)),
        ({"bbox": [], "segmentation": [[90, 80, 110, 80, 110, 120]]}, (90, 80, 110, 120)),
    ],
)
def test_boxes_that_are_turned_or_only_outlined(annotation, corners, tmp_path):
    [found] = answers(coco(tmp_path, annotation))
    assert found == pytest.approx(corners, abs=1e-3)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        ({"bbox": [80, 90, 40, 20], "attributes": {"rotation": "left"}}, "rotation is 'left': it must be a number of degrees"),
        ({"bbox": [80, 90, 40, 20], "attributes": {"rotation": float("nan")}}, "rotation is 'nan': it must be a number"),
        ({"segmentation": [[1, 2, 3]]}, "points of its segmentation are .*: they must be pairs of numbers"),
        ({"bbox": [100, 100, 40, 20, 90]}, "it must be four numbers"),
        ({"segmentation": {"counts": "abc", "size": [9, 9]}}, "1 of 1 annotations .*neither a box nor an outline .*annotation 0"),
    ],
)
def test_annotations_that_hold_no_box_are_named(annotation, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        answers(coco(tmp_path, annotation))


def test_one_name_under_two_ids_is_one_question(tmp_path):
    twice = [{"id": 1, "name": "fish"}, {"id": 2, "name": "fish"}]
    path = coco(tmp_path, {"bbox": [10, 20, 30, 40]}, {"bbox": [100, 100, 50, 20], "category_id": 2}, categories=twice)
    [prompt] = load("grounding_jsonl", "datasets")(path)
    assert prompt.answer == (Box(10, 20, 40, 60, label="fish"), Box(100, 100, 150, 120, label="fish"))
    with pytest.raises(ValueError, match="category 1 is listed twice, with different values"):
        load("grounding_jsonl", "datasets")(coco(tmp_path, categories=[BONE, {"id": 1, "name": "fish"}]))


def test_losses_are_named_and_more_than_a_tenth_is_a_problem(tmp_path):
    good, flat, far = {"bbox": [1, 2, 3, 4]}, {"bbox": [5, 5, 0, 5]}, {"bbox": [190, 0, 50, 5]}
    path = coco(tmp_path, *[good] * 18, flat, far)
    said = check(str(path), ())
    assert "1 annotations left out: no area (instances.json, annotation 18)" in said and "annotation 19)" in said
    path = coco(tmp_path, *[good] * 17, flat, *[far] * 7)
    with pytest.raises(
        ValueError,
        match=r"8 of 25 annotations cannot be used, more than a tenth: no area \(instances.json, annotation 17\); outside the "
        r"picture \(.*annotation 18, .*annotation 22, \.\.\)",
    ):
        check(str(path), ())
    said = check(str(path), (), CheckOptions(fix=tmp_path / "good.jsonl"))
    assert "1 rows written, 0 of 1 left out" in said and "7 annotations left out: outside the picture" in said


# a corner of the stored picture of 64 x 48 pixels, and where EXIF's orientations show it
TURNS = {5: (2, 1, 12, 11), 6: (36, 1, 46, 11), 7: (36, 53, 46, 63), 8: (2, 53, 12, 63)}


@pytest.mark.parametrize("orientation", TURNS)
def test_boxes_of_a_stored_picture_are_turned_with_it(orientation, jsonl, tmp_path):
    stored = Image.new("RGB", (64, 48), "black")
    stored.paste("white", (1, 2, 11, 12))
    exif = Image.Exif()
    exif[EXIF] = orientation
    stored.save(tmp_path / "1.png", exif=exif)
    row = {"image": "1.png", "question": "Where is it?", "box": [1, 2, 11, 12], "size": [64, 48]}
    shares = row | {"question": "And?", "boxes": [[1 / 64, 2 / 48, 11 / 64, 12 / 48]], "space": "norm1", "box": None}
    path = jsonl(row, {name: value for name, value in shares.items() if value is not None})
    one, two = load("grounding_jsonl", "datasets")(path)
    assert one.answer.corners == TURNS[orientation] and one.columns["size"] == (48, 64)
    upright = two.answer[0].to("pixel", MediaSize(48, 64, 48, 64))
    assert upright.corners == pytest.approx(TURNS[orientation])
    # the picture as models see it is white there
    assert Image.fromarray(np.asarray(open_picture(str(tmp_path / "1.png"), "p"))).getbbox() == TURNS[orientation]
    assert "2 rows whose boxes were turned with their pictures" in check(str(path), ())


def test_another_size_is_refused(jsonl, picture):
    row = {"image": picture("1.png"), "question": "Where is it?", "box": [1, 2, 11, 12], "size": [48, 64]}
    with pytest.raises(ValueError, match=r"says its picture has size \[48, 64\], but it has \[64, 48\]"):
        load("grounding_jsonl", "datasets")(jsonl(row))


@pytest.mark.parametrize("spelled", ["xyxy", "xywh"])
def test_percents_are_suspected(spelled, jsonl, picture):
    picture("1.png", (1280, 720))
    corners = [(3 * i, 2 * i, 3 * i + 30.5, 2 * i + 40) for i in range(20)]
    boxes = [[x, y, *((a, b) if spelled == "xyxy" else (a - x, b - y))] for x, y, a, b in corners]
    rows = [{"image": "1.png", "question": f"{i}?", "box": box} for i, box in enumerate(boxes)]
    words = "may be percents of the picture: divide them by 100 and give --boxes norm1"
    if spelled == "xywh":
        with pytest.raises(ValueError, match=words):
            check(str(jsonl(*rows)), ())
        return
    assert words in check(str(jsonl(*rows)), ())
    with pytest.warns(UserWarning, match=words):
        load("grounding_jsonl", "datasets")(jsonl(*rows))
    # twenty boxes of which one goes beyond 100 are pixels, and so are those of small pictures
    assert "be percents" not in check(str(jsonl(*rows, rows[0] | {"question": "far?", "box": [90, 90, 101, 100]})), ())
    picture("1.png", (100, 90))
    assert "be percents" not in check(str(jsonl(*rows)), ())
