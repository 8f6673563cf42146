"""Layouts of folders: YOLO's, texts beside pictures, and webdataset's tar files; and what is refused."""

import io
import json
import tarfile

import pytest
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.app.commands.data import check
from mmrl.app.plugins.resolve import load
from mmrl.app.reward_test.probes import read_tasks
from mmrl.core.samples import MediaSize
from mmrl.data.layouts.files import MOST_BYTES, tar_rows
from mmrl.data.layouts.source import guess
from mmrl.data.validate import Report
from tests.support.grounding import convert, load_questions, read
from tests.support.refused import refused
from tests.support.sounds import tone, write_wav
from tests.support.videos import even, write_video


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


LINES = "0 0.5 0.5 0.25 0.5\n1 0.25 0.25 0.5 0.5\n0 0 0 0.5 0 0.5 0.5\n"
CAT = (Box(0.375, 0.25, 0.625, 0.75, "norm1", "cat"), Box(0, 0, 0.5, 0.5, "norm1", "cat"))
DOG = (Box(0, 0, 0.5, 0.5, "norm1", "dog"),)
TREES = {
    "labels above splits": ("labels/train/1.txt", "images/train/1.jpg"),
    "splits above labels": ("train/labels/1.txt", "train/images/1.jpg"),
    "no splits": ("labels/1.txt", "images/1.jpg"),
    "side by side": ("1.txt", "1.jpg"),
    "an ending of cameras": ("labels/1.txt", "images/1.JPG"),
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("names", ["names: [cat, dog]", "train: ../train/images\nnames:\n  0: cat\n  1: dog\n", None])
def test_every_tree_is_read_with_either_file_of_names(tree, names, write):
    labels, picture = TREES[tree]
    if tree == "side by side" and names is not None:
        names = None
    folder = write(**{labels: LINES, picture: None, "classes.txt" if names is None else "data.yaml": names or "cat\ndog\n"})
    assert guess(folder).layout == "yolo"
    shown = (str(folder / picture),)
    expected = [(f"Locate every {label} in the picture.", boxes, shown) for label, boxes in (("cat", CAT), ("dog", DOG))]
    assert read(folder) == expected
    if names is not None:
        assert read(folder / "data.yaml") == expected
    if "train" in picture:
        assert read(folder, split="train") == expected
        refused("holds no rows", read, folder, split="val")


def test_a_question_may_be_chosen_when_converting(write, tmp_path):
    files = {"labels/1.txt": LINES, "labels/2.txt": "", "classes.txt": "cat\ndog"}
    folder = write(**files, **{f"images/{i}.jpg": None for i in (1, 3)})
    done = convert(folder, None, tmp_path / "out.jsonl", question="Where is the {label}?")
    assert done.num_rows == 2 and done.notes == {f"pictures left out: no {what}": 1 for what in ("boxes", "file of labels")}
    pixels = [tuple(box.to("pixel", MediaSize(64, 48, 64, 48)) for box in boxes) for boxes in (CAT, DOG)]
    assert [answer for _, answer, _ in read(done.out)] == pixels
    assert [text for text, _, _ in read(done.out)] == ["Where is the cat?", "Where is the dog?"]


def test_classes_without_names_are_refused_with_the_remedy(write):
    folder = write(**{"labels/1.txt": LINES, "images/1.jpg": None})
    refused(r"yolo holds YOLO's labels without the names of their classes: write classes\.txt", read, folder)
    (folder / "data.yaml").write_text("names: [yes, no]\n")
    refused(r'or data\.yaml with names: \["cat", "dog"\]', read, folder)


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
    refused(rf"labels/1\.txt:2: .*{words}", read, folder)


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
    refused(rf"data\.yaml {words}", read, folder)
    assert not (tmp_path / "ran").exists()


def test_labels_that_lead_out_of_the_folder_are_refused(write, tmp_path):
    (tmp_path / "secret.txt").write_text("0 0.5 0.5 0.1 0.1")
    folder = write(**{"labels/1.txt": LINES, "images/1.jpg": None, "classes.txt": "cat\ndog"})
    (folder / "labels/2.txt").symlink_to(tmp_path / "secret.txt")
    refused(r"labels/2\.txt:1: .* leads through a link", read, folder)


KNEE = "1 0.2943 0.4639 0.02 0.02 0.2943 0.4639\n0 0.6 0.4639 0.02 0.02 0.6 0.4639\n"


def test_keypoints_behind_boxes_are_no_outlines(write):
    yaml = "kpt_shape: [1, 2]\nnames: [hip, knee]"
    folder = write(**{"labels/1.txt": KNEE, "images/1.jpg": None, "data.yaml": yaml})
    [(_, hip, _), (_, knee, _)] = sorted(read(folder), key=lambda found: found[1][0].label)
    assert knee[0].corners == pytest.approx((0.2843, 0.4539, 0.3043, 0.4739)) and hip[0].corners[0] == pytest.approx(0.59)
    write(**{"data.yaml": "names: [hip, knee]"})
    refused(r"all 2 lines with more than a box may be a box and 1 points inside it: write kpt_shape: \[1, 2\]", read, folder)
    write(**{"data.yaml": "kpt_shape: [0, 0]\nnames: [hip, knee]"})
    assert len(read(folder)) == 2
    write(**{"labels/1.txt": KNEE + "0 0.1 0.1 0.9 0.1 0.5 0.9\n", "data.yaml": "names: [hip, knee]"})
    assert len(read(folder)) == 2
    # three numbers a point, of which the last says whether it is seen
    write(**{"labels/1.txt": "0 0.5 0.5 0.2 0.2 0.5 0.5 2 0 0 0 0.45 0.55 1\n"})
    refused(r"a box and 3 points inside it: write kpt_shape: \[3, 3\]", read, folder)
    write(**{"data.yaml": "kpt_shape: [3, 3]\nnames: [hip, knee]"})
    assert read(folder)[0][1][0].corners == pytest.approx((0.4, 0.4, 0.6, 0.6))
    write(**{"data.yaml": "kpt_shape: [2, 3]\nnames: [hip, knee]"})
    refused("width and height of a box, and 6 numbers of keypoints as kpt_shape says", read, folder)
    write(**{"data.yaml": "kpt_shape: 17\nnames: [hip, knee]"})
    refused("says kpt_shape: 17: it must be how many keypoints", read, folder)


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


def test_outlines_of_several_lengths_are_no_keypoints_and_confidences_are_ignored_and_counted(write, tmp_path):
    """Each may be a box with points inside it, but keypoints are as many in every line."""
    lines = "0 0.5 0.5 0.52 0.5 0.52 0.52\n0 0.5 0.5 0.52 0.5 0.52 0.52 0.5 0.52\n"
    folder = write(**{"labels/1.txt": lines, "images/1.jpg": None, "classes.txt": "cat"})
    assert [box.corners for box in read(folder)[0][1]] == [(0.5, 0.5, 0.52, 0.52)] * 2
    lines = "0 0.5 0.5 0.25 0.5 0.875\n0 0.1 0.1 0.9 0.1 0.5 0.9 0.5\n"
    folder = write(**{"labels/1.txt": lines, "images/1.jpg": None, "classes.txt": "cat"})
    assert [box.corners for box in read(folder)[0][1]] == [(0.375, 0.25, 0.625, 0.75), (0.1, 0.1, 0.9, 0.9)]
    [note] = convert(folder, None, tmp_path / "out.jsonl").notes.items()
    assert note[0].startswith("confidences ignored") and note[1] == 2


def png():
    data = io.BytesIO()
    Image.new("RGB", (64, 48), "red").save(data, "PNG")
    return data.getvalue()


def pack(path, *members):
    """A tar file of (name, bytes), or of members as they are."""
    with tarfile.open(path, "w") as archive:
        for one in members:
            info, data = (one, b"") if isinstance(one, tarfile.TarInfo) else (tarfile.TarInfo(one[0]), one[1])
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def asked(answer):
    return json.dumps({"question": "How many?", "answer": answer, "image": "/etc/passwd"}).encode()


def test_members_of_one_name_are_a_row(tmp_path):
    one = (("x/1.jpg", png()), ("x/1.json", asked(3)))
    two = (("x/2.json", asked(4)), ("x/2.mask.png", b"m"), ("x/2.png", b"p"), ("x/2.npy", b""))
    path, report = pack(tmp_path / "a.tar", *one, *two), Report("a")
    first, second = tar_rows(path, report)
    assert first.values == {"id": "x/1", "question": "How many?", "answer": 3, "image": {"bytes": png(), "path": None}}
    assert second.values["image"]["bytes"] == b"p" and second.values["mask"]["bytes"] == b"m"
    assert [first.place, second.place] == ["a.tar:1", "a.tar:2"]
    assert report.notes == {"members left out: neither pictures, .json nor .txt": 1} and report.ok


def test_a_folder_of_shards_trains_and_its_pictures_become_files_on_conversion(tmp_path):
    (tmp_path / "shards").mkdir()
    for i in range(2):
        pack(tmp_path / f"shards/{i}.tar", (f"{i}.png", png()), (f"{i}.json", asked(i)))
    assert guess(tmp_path / "shards").layout == guess(tmp_path / "shards/0.tar").layout == "questions"
    prompts = load_questions(tmp_path / "shards")
    assert [(prompt.id, prompt.answer, prompt.media[0].size) for prompt in prompts] == [("0", 0, (64, 48)), ("1", 1, (64, 48))]
    done = convert(tmp_path / "shards", None, tmp_path / "out/rows.jsonl")
    (tmp_path / "out").rename(tmp_path / "moved")
    again = load_questions(tmp_path / "moved/rows.jsonl")
    assert (done.num_rows, done.num_pictures) == (2, 1) and [prompt.answer for prompt in again] == [0, 1]


def link(kind, name="a.png", target="/etc/passwd"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (link(tarfile.SYMTYPE), "holds 'a.png', a link or special file: pack the files themselves"),
        (link(tarfile.LNKTYPE), "holds 'a.png', a link or special file"),
        (link(tarfile.FIFOTYPE), "holds 'a.png', a link or special file"),
        (("../a.png", b"x"), "holds '../a.png', which leads out of it: pack the files below one folder"),
        (("/a.png", b"x"), "holds '/a.png', which leads out of it"),
        (("a.txt", bytes(MOST_BYTES[".txt"] + 1)), "holds 'a.txt' of 1,048,577 bytes, more than 1,048,576: pack smaller files"),
    ],
)
def test_a_tar_with_such_a_member_is_refused(member, words, tmp_path):
    path = pack(tmp_path / "a.tar", ("1.png", png()), ("1.json", asked(1)), member)
    refused(rf"a\.tar {words}", load_questions, path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.tar"]


@pytest.mark.parametrize("cut", [100, 1500, -5_000])
def test_a_tar_that_is_cut_or_none_is_refused(cut, tmp_path):
    path = pack(tmp_path / "a.tar", *((f"{i}.json", asked(i)) for i in range(20)))
    path.write_bytes(path.read_bytes()[: cut if cut > 0 else 20 * 1024])
    words = r"a\.tar is no whole tar file without compression \(.*\): write or download it again"
    refused(words, list, tar_rows(path, Report("a")))


@pytest.mark.parametrize("data, words", [(b"[1]", "must hold one JSON object"), (b"[" * 9999, "not JSON"), (b"\xff", "not JSON")])
def test_what_a_member_says_wrong_is_named(data, words, tmp_path):
    report = Report("a")
    list(tar_rows(pack(tmp_path / "a.tar", ("1.json", data)), report))
    assert words in str(report) and "a.tar, 1.json: " in str(report)


@pytest.fixture
def folder(tmp_path):
    for name, text in (("001.png", "a red fox\n"), ("002.JPG", "\ufeffein Füchslein"), ("note.md", "no caption")):
        (tmp_path / name).with_suffix(".txt" if name[0] == "0" else ".doc").write_text(text, encoding="utf-8")
        if name[0] == "0":
            Image.new("RGB", (64, 48), "red").save(tmp_path / name)
    return tmp_path


FOX = ["a red fox", "ein Füchslein"]


def test_every_data_set_of_generators_reads_it(folder):
    assert guess(folder).layout == "pictures" and "2 rows, 0 problems" in check(str(folder), ())
    pictures = load("pictures", "datasets")(folder)
    assert [p.text for p in pictures] == FOX
    assert [p.columns["picture"] for p in pictures] == [str(folder / name) for name in ("001.png", "002.JPG")]
    assert [p.text for p in load("prompts", "datasets")(folder)] == FOX
    edits = load("edits", "datasets")(folder)
    assert [(p.text, p.media) for p in edits] == [(p.text, (p.columns["picture"],)) for p in pictures]
    assert [(task.prompt.text, task.names) for task in read_tasks(folder)] == [(FOX[0], ("001.png",)), (FOX[1], ("002.JPG",))]


def test_a_folder_of_splits_and_clips(folder):
    for split in ("train", "test"):
        (folder / split).mkdir()
    write_video(folder / "train/1.mp4", even(10))
    (folder / "train/1.caption").write_text("a ball falls")
    Image.new("RGB", (64, 48), "red").save(folder / "test/1.png")
    (folder / "test/1.txt").write_text("a still ball")
    for file in folder.glob("00*"):
        file.unlink()
    [clip] = load("pictures", "datasets")(folder, split="train")
    assert (clip.text, clip.columns["clip"]) == ("a ball falls", str(folder / "train/1.mp4"))
    assert load("prompts", "datasets")(folder, split="test")[0].text == "a still ball"
    assert "1 rows, 0 problems" in check(str(folder), ("split=test",))


def test_what_lacks_a_text_is_named_and_labels_are_no_texts(folder):
    (folder / "002.txt").unlink()
    for look in (load("pictures", "datasets"), load("edits", "datasets"), read_tasks):
        refused(r"002\.JPG: it has no text: write it into 002\.txt next to it, or list all in metadata", look, folder)
    # a picture without boxes comes first
    (folder / "001.txt").write_text("")
    (folder / "002.txt").write_text("0 0.5 0.5 0.25 1e-02\n")
    refused(r"holds YOLO's labels without the names of their classes: write classes\.txt", check, str(folder), ())
    (folder / "001.txt").write_text("a fox")
    (folder / "002.txt").unlink()
    (folder / "002.txt").symlink_to("/etc/hostname")
    refused("leads through a link", load("prompts", "datasets"), folder)
    (folder / "001.png").write_bytes(b"no picture")
    (folder / "002.txt").unlink()
    (folder / "002.txt").write_text("a fox")
    refused(r"001\.png", check, str(folder), ())


def test_sounds_with_texts_are_refused_by_name(folder, tmp_path):
    """Also beside pictures; listed in metadata.jsonl they are read."""
    write_wav(folder / "003.wav", [tone(0.1)])
    assert "2 rows, 0 problems" in check(str(folder), ()), "a sound without a text is nothing"
    (folder / "003.txt").write_text("a beep")
    told = r"holds sounds with texts beside them \(003\.wav\), which nothing reads: list them in metadata\.jsonl"
    refused(told, check, str(folder), ())
    for file in folder.glob("00[12]*"):
        file.unlink()
    for look in (lambda path: check(str(path), ()), load("pictures", "datasets"), load_questions, read_tasks):
        refused(told, look, folder)
    (folder / "metadata.jsonl").write_text('{"file_name": "003.wav", "question": "What is heard?", "answer": "a beep"}\n')
    assert "1 rows, 0 problems" in check(str(folder), ())
