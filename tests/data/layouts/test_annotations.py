"""What annotation tools write, Pascal VOC and LabelMe among them: boxes as they mean them, splits, and what is refused."""

import json

import numpy as np
import pytest
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.app.commands.data import check
from mmrl.app.commands.options import CheckOptions
from mmrl.core.samples import MediaSize
from mmrl.data.layouts.source import guess
from mmrl.policies.shared.pictures import open_picture
from tests.support.grounding import convert, load_boxes, read
from tests.support.refused import refused

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
    return [box.corners for prompt in load_boxes(path) for box in prompt.answer]


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
    refused(words, answers, coco(tmp_path, annotation))


def test_one_name_under_two_ids_is_one_question(tmp_path):
    twice = [{"id": 1, "name": "fish"}, {"id": 2, "name": "fish"}]
    path = coco(tmp_path, {"bbox": [10, 20, 30, 40]}, {"bbox": [100, 100, 50, 20], "category_id": 2}, categories=twice)
    [prompt] = load_boxes(path)
    assert prompt.answer == (Box(10, 20, 40, 60, label="fish"), Box(100, 100, 150, 120, label="fish"))
    with pytest.raises(ValueError, match="category 1 is listed twice, with different values"):
        load_boxes(coco(tmp_path, categories=[BONE, {"id": 1, "name": "fish"}]))


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
    one, two = load_boxes(path)
    assert one.answer.corners == TURNS[orientation] and one.columns["size"] == (48, 64)
    upright = two.answer[0].to("pixel", MediaSize(48, 64, 48, 64))
    assert upright.corners == pytest.approx(TURNS[orientation])
    # the picture as models see it is white there
    assert Image.fromarray(np.asarray(open_picture(str(tmp_path / "1.png"), "p"))).getbbox() == TURNS[orientation]
    assert "2 rows whose boxes were turned with their pictures" in check(str(path), ())


@pytest.mark.parametrize("spelled", ["xyxy", "xywh"])
def test_percents_are_suspected(spelled, jsonl, picture):
    picture("1.png", (1280, 720))
    corners = [(3 * i, 2 * i, 3 * i + 30.5, 2 * i + 40) for i in range(20)]
    boxes = [[x, y, *((a, b) if spelled == "xyxy" else (a - x, b - y))] for x, y, a, b in corners]
    rows = [{"image": "1.png", "question": f"{i}?", "box": box} for i, box in enumerate(boxes)]
    words = "may be percents of the picture: divide them by 100 and give --boxes norm1"
    if spelled == "xywh":
        refused(words, check, str(jsonl(*rows)), ())
        return
    assert words in check(str(jsonl(*rows)), ())
    with pytest.warns(UserWarning, match=words):
        load_boxes(jsonl(*rows))
    # twenty boxes of which one goes beyond 100 are pixels, and so are those of small pictures
    assert "be percents" not in check(str(jsonl(*rows, rows[0] | {"question": "far?", "box": [90, 90, 101, 100]})), ())
    picture("1.png", (100, 90))
    assert "be percents" not in check(str(jsonl(*rows)), ())


def shape(label, *points, kind="rectangle"):
    return {"label": label, "shape_type": kind, "points": [list(point) for point in points], "flags": {}}


@pytest.fixture
def labelme(tmp_path):
    """Write a picture and its file into a folder below one; gives the latter."""

    def write(*shapes, below="", picture="1.jpg"):
        folder = tmp_path / "labelme" / below
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 48), "red").save(folder / "1.jpg")
        found = {"version": "5.0", "imagePath": picture, "imageData": None, "imageWidth": 64, "imageHeight": 48}
        (folder / "1.json").write_text(json.dumps(found | {"shapes": shapes}))
        return tmp_path / "labelme"

    return write


def test_rectangles_and_polygons_are_boxes(labelme, tmp_path):
    turned = shape("cat", (20, 20), (4, 5))
    folder = labelme(turned, shape("cat", (1, 2), (9, 3), (5, 30), kind="polygon"), shape("dog", (1, 1), kind="point"))
    assert guess(folder).layout == guess(folder / "1.json").layout == "labelme"
    boxes = (Box(4, 5, 20, 20, label="cat"), Box(1, 2, 9, 30, label="cat"))
    expected = [("Locate every cat in the picture.", boxes, (str(folder / "1.jpg"),))]
    assert read(folder) == read(folder / "1.json") == expected
    assert convert(folder, None, tmp_path / "out.jsonl").notes == {
        "annotations left out: no rectangle or polygon (1.json, shape 3)": 1
    }


def test_folders_are_splits(labelme):
    for split in ("train", "valid"):
        folder = labelme(shape(split, (1, 1), (9, 9)), below=split)
    assert guess(folder).layout == "labelme"
    assert [text for text, _, _ in read(folder)] == [f"Locate every {split} in the picture." for split in ("train", "valid")]
    assert [media for _, _, media in read(folder, split="valid")] == [(str(folder / "valid/1.jpg"),)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shapes": [shape("a", (1, "b"), (2, 3))]}, "the points of 'a' are .*: they must be pairs of numbers"),
        ({"shapes": [shape("a", (1, 2, 3), (2, 3))]}, "the points of 'a' are .*: they must be pairs of numbers"),
        ({"shapes": [{"points": []}]}, "does not have the layout of labelme: 'label' is missing"),
        ({"imagePath": "..\\..\\secret.jpg", "shapes": [shape("a", (1, 2), (9, 9))]}, "leads out of the folder"),
    ],
)
def test_what_a_file_says_wrong_is_named(change, words, labelme):
    file = labelme() / "1.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    refused(rf"1\.json.*{words}", read, file.parent)


def an_object(name, *sides):
    bounds = "".join(f"<{key}>{side}</{key}>" for key, side in zip(("xmin", "ymin", "xmax", "ymax"), sides, strict=True))
    return f"<object><name>{name}</name><bndbox>{bounds}</bndbox></object>"


def annotation(*objects, name="1.jpg", head=""):
    size = "<size><width>64</width><height>48</height><depth>3</depth></size>"
    return f"{head}<annotation><filename>{name}</filename>{size}{''.join(objects)}</annotation>"


@pytest.fixture
def voc(tmp_path):
    """Write annotations of 1.jpg, 2.jpg, ..; gives the folder."""

    def write(*texts):
        for below in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (tmp_path / "voc" / below).mkdir(parents=True)
        for number, text in enumerate(texts, start=1):
            (tmp_path / f"voc/Annotations/{number}.xml").write_text(text)
            Image.new("RGB", (64, 48), "red").save(tmp_path / f"voc/JPEGImages/{number}.jpg")
        return tmp_path / "voc"

    return write


def test_boxes_by_name_and_splits_by_lists(voc):
    cats = an_object("cat", 1, 1, 20, 20), an_object("cat", 30, 30, 64, 48)
    folder = voc(annotation(*cats, an_object("dog", 5, 6, 7.5, 8)), annotation(an_object("cow", 2, 2, 9, 9), name="2.jpg"))
    (folder / "ImageSets/Main/train.txt").write_text("1\n")
    (folder / "ImageSets/Main/val.txt").write_text("2 -1\n")
    assert (guess(folder).layout, guess(folder / "Annotations/1.xml").layout) == ("voc", "voc")
    one, two = (str(folder / f"JPEGImages/{i}.jpg") for i in (1, 2))
    train = [
        ("Locate every cat in the picture.", (Box(0, 0, 20, 20, label="cat"), Box(29, 29, 64, 48, label="cat")), (one,)),
        ("Locate every dog in the picture.", (Box(4, 5, 7.5, 8, label="dog"),), (one,)),
    ]
    cow = [("Locate every cow in the picture.", (Box(1, 1, 9, 9, label="cow"),), (two,))]
    assert read(folder) == train + cow
    assert read(folder, split="train") == train and read(folder, split="val") == cow


def test_names_in_lists_may_hold_blanks(voc):
    folder = voc(annotation(an_object("cow", 2, 2, 9, 9)))
    (folder / "Annotations/1.xml").rename(folder / "Annotations/a red 1.xml")
    for listed in ("a red 1\n", "a red 1  1\n", " a red 1 -1 \n"):
        (folder / "ImageSets/Main/test.txt").write_text(listed)
        assert len(read(folder, split="test")) == 1


def test_pictures_may_lie_next_to_their_files(tmp_path):
    (tmp_path / "1.xml").write_text(annotation(an_object("cat", 1, 1, 20, 20)))
    Image.new("RGB", (64, 48), "red").save(tmp_path / "1.jpg")
    for path in (tmp_path, tmp_path / "1.xml"):
        assert read(path) == [("Locate every cat in the picture.", (Box(0, 0, 20, 20, label="cat"),), (str(tmp_path / "1.jpg"),))]


LAUGHS = "<!DOCTYPE x [<!ENTITY a 'ha'>" + "".join(f"<!ENTITY a{i} '&a{i - 1};&a{i - 1};'>" for i in range(1, 40)) + "]>"
FILE = "<!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]>"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (annotation(an_object("&a39;", 1, 1, 9, 9), head=LAUGHS), "declares a document type, .*: remove <!DOCTYPE"),
        (annotation(an_object("&a;", 1, 1, 9, 9), head=FILE), "declares a document type, .*: remove <!DOCTYPE"),
        (annotation(an_object("&a;", 1, 1, 9, 9)), "is not XML: undefined entity"),
        ("<annotation>", "is not XML: no element found"),
        ("<annotation/>", "<filename> is missing or empty: it does not have the layout of voc"),
        (annotation(an_object("cat", "a", 1, 9, 9)), "<bndbox><xmin> is 'a' and must be a number"),
        (annotation(an_object("cat", "nan", 1, 9, 9)), "must be four numbers"),
        (annotation(an_object("cat", 1, 1, 9, 9), name="../../secret.jpg"), "leads out of the folder"),
    ],
)
def test_a_file_that_is_hostile_or_something_else_is_named(text, words, voc):
    refused(rf"Annotations/1\.xml:1: .*{words}", read, voc(text))


def test_xml_in_utf_16_hides_no_entities(voc):
    folder = voc("")
    (folder / "Annotations/1.xml").write_bytes(annotation(an_object("&a;", 1, 1, 9, 9), head=FILE).encode("utf-16"))
    refused(r"1\.xml is text in UTF-16 or UTF-32", read, folder)


def test_lists_that_name_missing_files_are_named(voc):
    folder = voc(annotation(an_object("cow", 2, 2, 9, 9)))
    (folder / "ImageSets/Main/train.txt").write_text("1 -1\n\n000012\n")
    refused(r"ImageSets/Main/train\.txt:3: it names '000012', and there is no such file in Annotations: remove", read, folder)
    (folder / "ImageSets/Main/train.txt").write_text("1 -1\n\n")
    assert len(read(folder)) == 1
