import json
import pickle

import pytest

from mmrl.answers.boxes.box import Box
from mmrl.app.plugins.resolve import load
from tests.support.grounding import check_file, convert

INSTANCES = {
    "images": [
        {"id": 1, "file_name": "a.png", "width": 64, "height": 48},
        {"id": 2, "file_name": "b.png", "width": 64, "height": 48},
        {"id": 9, "file_name": "empty.png", "width": 64, "height": 48},
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
def coco(tmp_path, picture):
    """A COCO layout; gives its instances file."""
    picture("images/a.png")
    picture("images/b.png")
    path = tmp_path / "annotations/instances.json"
    path.parent.mkdir()
    path.write_text(json.dumps(INSTANCES))
    return path


def test_coco(coco, tmp_path):
    done = convert(coco, "coco", tmp_path / "out/boxes.jsonl", tmp_path / "images")
    assert (done.num_rows, done.num_pictures, done.missing_pictures) == (4, 2, 0)
    assert done.notes == {
        "annotations left out: crowd (instances.json, annotation 14)": 1,
        "annotations left out: no area (instances.json, annotation 15)": 1,
        "annotations left out: outside the picture (instances.json, annotation 16)": 1,
        "pictures left out: no boxes": 1,
        "annotations cut at the picture's edge": 1,
    }
    assert check_file(done.out).ok
    cats, dogs, other, _ = load("grounding_jsonl", "datasets")(done.out)
    assert cats.answer == (Box(1, 2, 11, 22, label="cat"), Box(40, 20, 64, 40, label="cat"))
    assert cats.text == "Locate every cat in the picture."
    assert dogs.answer == (Box(0, 0, 5, 5, label="dog"),)
    assert other.media == (str(tmp_path / "images/b.png"),)
    assert "1 annotations left out: crowd" in str(done)


@pytest.mark.parametrize("suffix", ["p", "json"])
def test_refcoco(coco, tmp_path, suffix):
    refs = coco.parent / f"refs(unc).{suffix}"
    refs.write_bytes(pickle.dumps(REFS, protocol=2) if suffix == "p" else json.dumps(REFS).encode())
    done = convert(coco.parent, "refcoco", tmp_path / "refs.jsonl", tmp_path / "images")
    assert done.num_rows == 10 and done.notes == {f"annotations left out: no area ({refs.name}, ref 7)": 1}
    one, two = load("grounding_jsonl", "datasets")(done.out, split="train")
    assert (one.id, one.text, one.answer) == ("5-0", "left cat", Box(1, 2, 11, 22))
    assert (two.id, two.text, two.answer) == ("5-1", "small one", Box(1, 2, 11, 22))
    assert convert(refs, "refcoco", tmp_path / "again.jsonl", tmp_path / "images").num_rows == 10


class Bomb:
    def __reduce__(self):
        return print, ("code ran",)


def test_a_pickle_that_could_run_code_is_refused(coco, tmp_path, capsys):
    (coco.parent / "refs(x).p").write_bytes(pickle.dumps([Bomb()]))
    with pytest.raises(ValueError, match=r"refs\(x\)\.p is not a pickle of plain data: it names builtins\.print"):
        convert(coco.parent, "refcoco", tmp_path / "refs.jsonl")
    assert capsys.readouterr().out == ""


def test_mistakes_are_named_and_leave_no_file(coco, tmp_path):
    out = tmp_path / "boxes.jsonl"
    with pytest.raises(ValueError, match=r"no layout is called .kitti.: choose one of boxes, .*coco"):
        convert(coco, "kitti", out)
    with pytest.raises(FileNotFoundError, match=r"gone\.json does not exist"):
        convert(tmp_path / "gone.json", "coco", out)
    with pytest.raises(ValueError, match="one refs file, but there is none"):
        convert(coco.parent, "refcoco", out)
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
        with pytest.raises(ValueError, match=words):
            convert(tmp_path / "odd.json", "coco", out)
    assert not out.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["annotations", "images", "odd.json"]


def test_missing_pictures_are_counted(coco, tmp_path):
    (tmp_path / "images/b.png").unlink()
    done = convert(coco, "coco", tmp_path / "boxes.jsonl", tmp_path / "images")
    assert done.missing_pictures == 1 and "1 pictures not found: give image_root" in str(done)


def test_a_conversion_without_any_picture_is_refused(coco, tmp_path):
    with pytest.raises(
        ValueError, match=r"none of the 2 pictures of .* is below .*annotations \(the first is .*a\.png\): give --image"
    ):
        convert(coco, "coco", tmp_path / "boxes.jsonl")
    assert not (tmp_path / "boxes.jsonl").exists()


def test_markers_of_clips_that_are_objects_are_taken_off(jsonl, tmp_path):
    clip = {"video": "a.mp4", "video_start": 2.0}
    path = jsonl({"video": clip, "question": "<video>\nWhat falls?", "answer": "a ball"})
    assert json.loads(convert(path, None, tmp_path / "out.jsonl").out.read_text())["question"] == "What falls?"
