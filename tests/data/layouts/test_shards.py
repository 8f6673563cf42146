"""Webdataset's tar files: rows of members, pictures as bytes, and archives that are refused."""

import io
import json
import tarfile

import pytest
from PIL import Image

from mmrl.app.plugins.resolve import load
from mmrl.data.layouts.shards import MOST, tar_rows
from mmrl.data.layouts.source import guess
from mmrl.data.validate import Report
from tests.support.grounding import convert


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
        (("a.txt", bytes(MOST[".txt"] + 1)), "holds 'a.txt' of 1,048,577 bytes, more than 1,048,576: pack smaller files"),
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
