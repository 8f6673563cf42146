"""Folders of 001.png and 001.txt, and webdataset's tar files: their rows, and archives that are refused."""

import io
import json
import tarfile

import pytest
from PIL import Image

from mmrl.app.commands.data import check
from mmrl.app.plugins.resolve import load
from mmrl.app.reward_test.probes import read_tasks
from mmrl.data.layouts.files import MOST_BYTES, tar_rows
from mmrl.data.layouts.source import guess
from mmrl.data.validate import Report
from tests.support.grounding import convert
from tests.support.sounds import tone, write_wav
from tests.support.videos import even, write_video


def png():
    data = io.BytesIO()
    Image.new("RGB", (64, 48), "red").save(data, "PNG")
    return data.getvalue()


def pack(path, *members):
    """A tar file of (name, bytes), or of members as they are."""
    with tarfile.open(path, "w") as archive:
        for one in members:
            if isinstance(one, tarfile.TarInfo):
                archive.addfile(one)
                continue
            info = tarfile.TarInfo(one[0])
            info.size = len(one[1])
            archive.addfile(info, io.BytesIO(one[1]))
    return path


def asked(answer):
    return json.dumps({"question": "How many?", "answer": answer, "image": "/etc/passwd"}).encode()


def test_members_of_one_name_are_a_row(tmp_path):
    path = pack(
        tmp_path / "a.tar",
        ("x/1.jpg", png()),
        ("x/1.json", asked(3)),
        ("x/2.json", asked(4)),
        ("x/2.mask.png", b"m"),
        ("x/2.png", b"p"),
        ("x/2.npy", b""),
    )
    report = Report("a")
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
    prompts = load("qa_jsonl", "datasets")(tmp_path / "shards")
    assert [(prompt.id, prompt.answer, prompt.media[0].size) for prompt in prompts] == [("0", 0, (64, 48)), ("1", 1, (64, 48))]
    done = convert(tmp_path / "shards", None, tmp_path / "out/rows.jsonl")
    (tmp_path / "out").rename(tmp_path / "moved")
    again = load("qa_jsonl", "datasets")(tmp_path / "moved/rows.jsonl")
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
    with pytest.raises(ValueError, match=rf"a\.tar {words}"):
        load("qa_jsonl", "datasets")(path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.tar"]


@pytest.mark.parametrize("cut", [100, 1500, -5_000])
def test_a_tar_that_is_cut_or_none_is_refused(cut, tmp_path):
    path = pack(tmp_path / "a.tar", *((f"{i}.json", asked(i)) for i in range(20)))
    path.write_bytes(path.read_bytes()[: cut if cut > 0 else 20 * 1024])
    with pytest.raises(ValueError, match=r"a\.tar is no whole tar file without compression \(.*\): write or download it again"):
        list(tar_rows(path, Report("a")))


@pytest.mark.parametrize(
    ("data", "words"), [(b"[1]", "must hold one JSON object"), (b"[" * 9999, "not JSON"), (b"\xff", "not JSON")]
)
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
    assert [(p.text, p.columns["picture"]) for p in pictures] == [
        (text, str(folder / name)) for text, name in zip(FOX, ("001.png", "002.JPG"), strict=True)
    ]
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
    for read in (load("pictures", "datasets"), load("edits", "datasets"), read_tasks):
        with pytest.raises(
            ValueError, match=r"002\.JPG: it has no text: write it into 002\.txt next to it, or list all in metadata"
        ):
            read(folder)
    # a picture without boxes comes first
    (folder / "001.txt").write_text("")
    (folder / "002.txt").write_text("0 0.5 0.5 0.25 1e-02\n")
    with pytest.raises(ValueError, match=r"holds YOLO's labels without the names of their classes: write classes\.txt"):
        check(str(folder), ())
    (folder / "001.txt").write_text("a fox")
    (folder / "002.txt").unlink()
    (folder / "002.txt").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="leads through a link"):
        load("prompts", "datasets")(folder)


def test_broken_pictures_beside_texts_are_found(folder):
    (folder / "001.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"001\.png"):
        check(str(folder), ())


def test_sounds_with_texts_are_refused_by_name(folder, tmp_path):
    """Also beside pictures; listed in metadata.jsonl they are read."""
    write_wav(folder / "003.wav", [tone(0.1)])
    assert "2 rows, 0 problems" in check(str(folder), ()), "a sound without a text is nothing"
    (folder / "003.txt").write_text("a beep")
    told = r"holds sounds with texts beside them \(003\.wav\), which nothing reads: list them in metadata\.jsonl"
    with pytest.raises(ValueError, match=told):
        check(str(folder), ())
    for file in folder.glob("00[12]*"):
        file.unlink()
    for read in (lambda path: check(str(path), ()), load("pictures", "datasets"), load("qa_jsonl", "datasets"), read_tasks):
        with pytest.raises(ValueError, match=told):
            read(folder)
    (folder / "metadata.jsonl").write_text('{"file_name": "003.wav", "question": "What is heard?", "answer": "a beep"}\n')
    assert "1 rows, 0 problems" in check(str(folder), ())
