"""YOLO's folders: both orders of folders, names of classes from two files, outlines, and what is refused."""

import pytest
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.app.plugins.resolve import load
from mmrl.core.samples import MediaSize
from mmrl.data.layouts.source import guess
from tests.support.grounding import convert


@pytest.fixture
def write(tmp_path):
    """Write files of text, and pictures under names that end in .jpg; gives their folder."""

    def files(**texts):
        for name, text in texts.items():
            path = tmp_path / "yolo" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (64, 48), "red").save(path) if text is None else path.write_text(text)
        return tmp_path / "yolo"

    return files


def read(path, **settings):
    return [(p.text, p.answer, p.media) for p in load("grounding_jsonl", "datasets")(path, **settings)]


LINES = "0 0.5 0.5 0.25 0.5\n1 0.25 0.25 0.5 0.5\n0 0 0 0.5 0 0.5 0.5\n"
CAT = (Box(0.375, 0.25, 0.625, 0.75, "norm1", "cat"), Box(0, 0, 0.5, 0.5, "norm1", "cat"))
DOG = (Box(0, 0, 0.5, 0.5, "norm1", "dog"),)
TREES = {
    "labels above splits": ("labels/train/1.txt", "images/train/1.jpg"),
    "splits above labels": ("train/labels/1.txt", "train/images/1.jpg"),
    "no splits": ("labels/1.txt", "images/1.jpg"),
    "side by side": ("1.txt", "1.jpg"),
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("names", ["names: [cat, dog]", "train: ../train/images\nnames:\n  0: cat\n  1: dog\n", None])
def test_every_tree_is_read_with_either_file_of_names(tree, names, write):
    labels, picture = TREES[tree]
    if tree == "side by side" and names is not None:
        names = None
    folder = write(**{labels: LINES, picture: None, "classes.txt" if names is None else "data.yaml": names or "cat\ndog\n"})
    assert guess(folder).layout == "yolo"
    expected = [
        (f"Locate every {label} in the picture.", boxes, (str(folder / picture),))
        for label, boxes in (("cat", CAT), ("dog", DOG))
    ]
    assert read(folder) == expected
    if names is not None:
        assert read(folder / "data.yaml") == expected
    if "train" in picture:
        assert read(folder, split="train") == expected
        with pytest.raises(ValueError, match="holds no rows"):
            read(folder, split="val")


def test_a_question_may_be_chosen_when_converting(write, tmp_path):
    folder = write(**{"labels/1.txt": LINES, "labels/2.txt": "", "images/1.jpg": None, "classes.txt": "cat\ndog"})
    done = convert(folder, None, tmp_path / "out.jsonl", question="Where is the {label}?")
    assert done.num_rows == 2 and done.notes == {"pictures left out: no boxes": 1}
    pixels = [tuple(box.to("pixel", MediaSize(64, 48, 64, 48)) for box in boxes) for boxes in (CAT, DOG)]
    assert [answer for _, answer, _ in read(done.out)] == pixels
    assert [text for text, _, _ in read(done.out)] == ["Where is the cat?", "Where is the dog?"]


def test_classes_without_names_are_refused_with_the_remedy(write):
    folder = write(**{"labels/1.txt": LINES, "images/1.jpg": None})
    with pytest.raises(ValueError, match=r"yolo holds YOLO's labels without the names of their classes: write classes\.txt"):
        read(folder)
    (folder / "data.yaml").write_text("names: [yes, no]\n")
    with pytest.raises(ValueError, match=r'or data\.yaml with names: \["cat", "dog"\]'):
        read(folder)


def test_endings_of_cameras_are_found(write):
    folder = write(**{"labels/1.txt": LINES, "images/1.JPG": None, "classes.txt": "cat\ndog"})
    assert read(folder)[0][2] == (str(folder / "images/1.JPG"),)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("7 0.5 0.5 0.1 0.1", "the line names class 7, and there are names for 2 classes: add its name"),
        ("0 32 24 10 10", "leaves its picture: its numbers must be shares of the picture, 0 to 1"),
        ("0 nan 0.5 0.1 0.1", "leaves its picture"),
        ("0 0.5 0.5 0.1", "must be a class and the centre, width and height of a box"),
        ("cat 0.5 0.5 0.1 0.1", "must be a class and the centre, width and height of a box"),
    ],
)
def test_a_line_that_says_something_else_is_named(line, words, write):
    folder = write(**{"labels/1.txt": f"0 0.5 0.5 0.1 0.1\n{line}\n", "images/1.jpg": None, "classes.txt": "cat\ndog"})
    with pytest.raises(ValueError, match=rf"labels/1\.txt:2: .*{words}"):
        read(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [x, x]\nnames: [*a, *a]", "refers to parts of itself"),
        ("names: !!python/object/apply:os.system ['touch ran']", "is not YAML: could not determine a constructor"),
        ("names: [" + "[" * 200_000, "is nested deeper than 100 levels: write only the names"),
        ("a: {" * 50_000, "is nested deeper than 100 levels"),
        ("- " * 100_000, "is nested deeper than 100 levels"),
        ("names: ]", "is not YAML"),
        ("x" * (2**18 + 1), "is longer than 262,144 bytes"),
    ],
)
def test_names_that_could_unfold_or_run_code_are_refused(text, words, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write(**{"labels/1.txt": LINES, "images/1.jpg": None, "data.yaml": text})
    with pytest.raises(ValueError, match=rf"data\.yaml {words}"):
        read(folder)
    assert not (tmp_path / "ran").exists()


def test_labels_that_lead_out_of_the_folder_are_refused(write, tmp_path):
    (tmp_path / "secret.txt").write_text("0 0.5 0.5 0.1 0.1")
    folder = write(**{"labels/1.txt": LINES, "images/1.jpg": None, "classes.txt": "cat\ndog"})
    (folder / "labels/2.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(ValueError, match=r"labels/2\.txt:1: .* leads through a link"):
        read(folder)


KNEE = "1 0.2943 0.4639 0.02 0.02 0.2943 0.4639\n0 0.6 0.4639 0.02 0.02 0.6 0.4639\n"


def test_keypoints_behind_boxes_are_no_outlines(write):
    yaml = "kpt_shape: [1, 2]\nnames: [hip, knee]"
    folder = write(**{"labels/1.txt": KNEE, "images/1.jpg": None, "data.yaml": yaml})
    [(_, hip, _), (_, knee, _)] = sorted(read(folder), key=lambda found: found[1][0].label)
    assert knee[0].corners == pytest.approx((0.2843, 0.4539, 0.3043, 0.4739)) and hip[0].corners[0] == pytest.approx(0.59)
    write(**{"data.yaml": "names: [hip, knee]"})
    with pytest.raises(
        ValueError, match=r"all 2 lines with more than a box may be a box and 1 points inside it: write kpt_shape: \[1, 2\]"
    ):
        read(folder)
    write(**{"data.yaml": "kpt_shape: [0, 0]\nnames: [hip, knee]"})
    assert len(read(folder)) == 2
    write(**{"labels/1.txt": KNEE + "0 0.1 0.1 0.9 0.1 0.5 0.9\n", "data.yaml": "names: [hip, knee]"})
    assert len(read(folder)) == 2
    # three numbers a point, of which the last says whether it is seen
    write(**{"labels/1.txt": "0 0.5 0.5 0.2 0.2 0.5 0.5 2 0 0 0 0.45 0.55 1\n"})
    with pytest.raises(ValueError, match=r"a box and 3 points inside it: write kpt_shape: \[3, 3\]"):
        read(folder)
    write(**{"data.yaml": "kpt_shape: [3, 3]\nnames: [hip, knee]"})
    assert read(folder)[0][1][0].corners == pytest.approx((0.4, 0.4, 0.6, 0.6))
    write(**{"data.yaml": "kpt_shape: [2, 3]\nnames: [hip, knee]"})
    with pytest.raises(ValueError, match="width and height of a box, and 6 numbers of keypoints as kpt_shape says"):
        read(folder)
    write(**{"data.yaml": "kpt_shape: 17\nnames: [hip, knee]"})
    with pytest.raises(ValueError, match="says kpt_shape: 17: it must be how many keypoints"):
        read(folder)


def test_confidences_behind_boxes_are_ignored_and_counted(write, tmp_path):
    lines = "0 0.5 0.5 0.25 0.5 0.875\n0 0.1 0.1 0.9 0.1 0.5 0.9 0.5\n"
    folder = write(**{"labels/1.txt": lines, "images/1.jpg": None, "classes.txt": "cat"})
    assert [box.corners for box in read(folder)[0][1]] == [(0.375, 0.25, 0.625, 0.75), (0.1, 0.1, 0.9, 0.9)]
    [note] = convert(folder, None, tmp_path / "out.jsonl").notes.items()
    assert note[0].startswith("confidences ignored") and note[1] == 2


def test_numbers_of_tracked_objects_are_ignored_and_counted(write, tmp_path):
    """Behind a box, or behind its confidence; the first object's number alone might be a share, or an outline's last point."""
    lines = "0 0.5 0.5 0.25 0.5 1\n0 0.5 0.5 0.25 0.5 0.875 1\n0 0.5 0.5 0.25 0.5\n"
    names = {"images/1.jpg": None, "images/2.jpg": None, "classes.txt": "cat"}
    folder = write(**{"labels/1.txt": lines, "labels/2.txt": "0 0.5 0.5 0.25 0.5 0.9 12\n", **names})
    assert {box.corners for _, boxes, _ in read(folder) for box in boxes} == {(0.375, 0.25, 0.625, 0.75)}
    notes = convert(folder, None, tmp_path / "out.jsonl").notes
    assert notes["numbers of tracked objects ignored: lines end with one"] == 3
    assert [count for note, count in notes.items() if note.startswith("confidences")] == [2]
    write(**{"labels/2.txt": "", "labels/1.txt": "0 0.1 0.1 0.9 0.1 0.5 1\n"})
    assert read(folder)[0][1][0].corners == (0.1, 0.1, 0.9, 1.0), "an outline that ends at the edge"


def test_outlines_of_several_lengths_are_no_keypoints(write):
    """Each may be a box with points inside it, but keypoints are as many in every line."""
    lines = "0 0.5 0.5 0.52 0.5 0.52 0.52\n0 0.5 0.5 0.52 0.5 0.52 0.52 0.5 0.52\n"
    folder = write(**{"labels/1.txt": lines, "images/1.jpg": None, "classes.txt": "cat"})
    assert [box.corners for box in read(folder)[0][1]] == [(0.5, 0.5, 0.52, 0.52)] * 2
