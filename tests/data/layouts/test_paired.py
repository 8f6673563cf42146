"""The trainers' folders of 001.png and 001.txt, by every data set that generators use, and by `data check` and `reward score`."""

import pytest
from PIL import Image

from mmrl.app.commands.data import check
from mmrl.app.plugins.resolve import load
from mmrl.app.reward_test.probes import read_tasks
from mmrl.data.layouts.source import guess
from tests.support.sounds import tone, write_wav
from tests.support.videos import even, write_video


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
