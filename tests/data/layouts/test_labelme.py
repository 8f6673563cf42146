"""LabelMe's JSON files: rectangles and polygons as boxes, splits as folders, and files that say something else."""

import json

import pytest
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.app.plugins.resolve import load
from mmrl.data.layouts.source import guess
from tests.support.grounding import convert


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


def read(path, **settings):
    return [(p.text, p.answer, p.media) for p in load("grounding_jsonl", "datasets")(path, **settings)]


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
    with pytest.raises(ValueError, match=rf"1\.json.*{words}"):
        read(file.parent)
