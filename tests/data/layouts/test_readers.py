"""Whole files and folders: data sets of Hugging Face, tables of texts, and RefCOCO as it is published five times."""

import io
import json
import pickle
import sys
from types import ModuleType

import datasets
import datasets as hf
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from mmrl.answers.boxes.box import Box
from mmrl.app.plugins.resolve import load
from mmrl.data.grounding import GroundingLayout
from mmrl.data.layouts.load import hf_prompts
from mmrl.data.layouts.source import guess
from mmrl.data.readers import import_extra, open_hf, read_json, read_rows, read_text
from mmrl.data.validate import Report
from tests.support.grounding import check_file, convert, load_boxes, load_questions
from tests.support.refused import refused

COLUMNS = {"question": "answer", "box": "bbox"}


@pytest.fixture
def load_hf():
    return load("grounding_hf", "datasets")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def refcoco(*boxes):
    """Rows as RefCOCO is commonly published: several captions, one box in xywh."""
    rows = {
        "image": [Image.new("RGB", (64, 48), (i, 0, 0)) for i in range(len(boxes))],
        "answer": [[f"left {i}", f"right {i}"] for i in range(len(boxes))],
        "bbox": [list(map(float, box)) for box in boxes],
        "iscrowd": [0] * len(boxes),
    }
    return datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())


@pytest.fixture(params=["saved", "saved splits", "parquet"])
def store(request, tmp_path):
    """Write a data set in one of the ways people store them; gives the name to load."""

    def write(data):
        if request.param == "parquet":
            data.to_parquet(tmp_path / "part.parquet")
            return str(tmp_path / "*.parquet")
        whole = datasets.DatasetDict({"train": data}) if request.param == "saved splits" else data
        whole.save_to_disk(tmp_path / "saved")
        return str(tmp_path / "saved")

    return write


@pytest.mark.parametrize("streaming", [False, True], ids=["stored", "streamed"])
def test_rows_become_prompts(store, streaming, load_hf):
    name = store(refcoco([1, 2, 10, 20], [0, 0, 64, 48]))
    prompts = load_hf(name, streaming=streaming, columns=COLUMNS, box_format="xywh")
    for _ in range(2):
        found = list(prompts)
        assert [prompt.text for prompt in found] == ["left 0", "right 0", "left 1", "right 1"]
        assert len({prompt.id for prompt in found}) == 4
        assert found[1].answer == Box(1, 2, 11, 22)
        assert found[2].media[0].convert("RGB").getpixel((0, 0)) == (1, 0, 0)
        assert found[2].columns["iscrowd"] == 0 and found[2].columns["size"] == (64, 48)


def test_stored_prompts_are_a_sequence(store, load_hf):
    prompts = load_hf(store(refcoco([1, 2, 10, 20], [0, 0, 64, 48])), columns=COLUMNS, box_format="xywh")
    assert len(prompts) == 4
    assert prompts[-1].text == "right 1"
    assert [prompt.text for prompt in prompts[1:3]] == ["right 0", "left 1"]


def test_bad_rows_are_named_before_training(store, load_hf):
    name = store(refcoco([1, 2, 10, 20], [60, 0, 10, 10], [0, 0, 0, 10]))
    with pytest.raises(ValueError, match=r"2 problems\n.*:2: box .* lies outside(.|\n)*:3: box .* has no area"):
        load_hf(name, columns=COLUMNS, box_format="xywh")
    stream = iter(load_hf(name, streaming=True, columns=COLUMNS, box_format="xywh"))
    assert [next(stream).text, next(stream).text] == ["left 0", "right 0"]
    refused(":2: box", next, stream)


def test_pictures_cut_short_are_found(tmp_path, load_hf):
    buffer = io.BytesIO()
    Image.effect_noise((64, 48), 50).save(buffer, "png")
    cells = [{"bytes": buffer.getvalue()[:end], "path": None} for end in (None, 400)]
    data = datasets.Dataset.from_dict({"image": cells, "question": ["a", "b"], "box": [[0.0, 0.0, 9.0, 9.0]] * 2})
    data.save_to_disk(tmp_path / "saved")
    refused(r"1 problems\n.*:2: picture .* cut short", load_hf, str(tmp_path / "saved"))


def test_choosing_a_split_of_what_is_not_empty(tmp_path, load_hf, caplog):
    caplog.set_level("INFO", logger="mmrl.loading")
    data = refcoco([1, 2, 10, 20])
    datasets.DatasetDict({"train": data, "val": refcoco([1, 2, 10, 20], [0, 0, 9, 9])}).save_to_disk(tmp_path / "two")
    datasets.DatasetDict({"a": data, "val": data}).save_to_disk(tmp_path / "other")
    data.save_to_disk(tmp_path / "one")
    assert len(open_hf(str(tmp_path / "two"), "val")) == 2
    assert len(open_hf(str(tmp_path / "two"))) == 1
    assert "two holds the splits train, val: train is read; split = NAME reads another" in caplog.text
    refused("the splits a, val: choose one", open_hf, str(tmp_path / "other"))
    refused("'test'; it holds the splits train, val", open_hf, str(tmp_path / "two"), "test")
    refused("no splits", open_hf, str(tmp_path / "one"), "train")
    refused(r"gone\.parquet does not exist", open_hf, str(tmp_path / "gone.parquet"), error=FileNotFoundError)
    refused("name: holds no rows", hf_prompts, refcoco([1, 2, 10, 20]).select([]), "name", GroundingLayout().prompts)


def test_a_folder_called_datasets_is_not_the_package(monkeypatch, tmp_path):
    namespace = ModuleType("datasets")
    namespace.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "datasets", namespace)
    refused(r"pip install 'mmrl\[data\]'.*only a folder", import_extra, "datasets", "load_dataset")
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(r"'datasets': pip install 'mmrl\[data\]'", import_extra, "datasets", "load_dataset")


def read(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    report = Report(path.name)
    return [(row.number, dict(row.values)) for row in read_rows(path, report)], [str(problem) for problem in report.problems]


def test_a_table_of_texts_and_one_of_very_many_columns_which_is_refused_at_once(tmp_path):
    text = '\ufeffimage,question,answer,box,width\r\na.png,"How many, if ""any""?",3,"[1, 2, 3, 4]",64\r\n'
    text += '\r\nb.png,"two\nlines",,[x,\r\n'
    (first, second), problems = read(tmp_path / "a.csv", text)
    assert first == (2, {"image": "a.png", "question": 'How many, if "any"?', "answer": "3", "box": [1, 2, 3, 4], "width": 64})
    assert second == (4, {"image": "b.png", "question": "two\nlines", "answer": None, "box": "[x", "width": None})
    assert problems == []
    assert read(tmp_path / "a.tsv", "question\tanswer\na, b\tc\n")[0] == [(2, {"question": "a, b", "answer": "c"})]
    assert read(tmp_path / "b.csv", "question;answer\na, b;c\n")[0] == [(2, {"question": "a, b", "answer": "c"})]
    assert read(tmp_path / "late.csv", "\nquestion\na\n")[0] == [(3, {"question": "a"})]
    assert read(tmp_path / "empty.csv", "")[0] == []
    names = [f"c{i}" for i in range(100_000)]
    (tmp_path / "rows.csv").write_text(",".join(names) + "\n" + ",".join("1" * len(names)) + "\n")
    with pytest.raises(ValueError, match=r"rows\.csv has 100,000 columns, more than 10,000: keep those that are used"):
        list(read_rows(tmp_path / "rows.csv", Report("")))


def test_rows_of_a_table_that_cannot_be_read_are_named_and_the_others_read(tmp_path):
    rows, problems = read(tmp_path / "a.csv", 'question,answer\nred, or blue?,red\nfine?,yes\n"a"b,c\nalone\n"never ends,1\n')
    assert rows == [(3, {"question": "fine?", "answer": "yes"})]
    quoted = "write a text that holds ',' as \"..\", and a quote in it twice"
    assert problems == [
        f"a.csv:2: the row has 3 cells, and the header names 2 columns: {quoted}",
        f"a.csv:4: the row cannot be read (',' expected after '\"'): {quoted}",
        f"a.csv:5: the row has 1 cells, and the header names 2 columns: {quoted}",
        f"a.csv:6: the row cannot be read (unexpected end of data): {quoted}",
    ]
    refused(r"a\.csv names the column 'a' twice in line 1: rename one of them", read, tmp_path / "a.csv", "a,b,a\n1,2,3\n")


@pytest.mark.parametrize("ending", ["csv", "json", "txt"])
def test_text_in_another_encoding_is_named_with_line_and_remedy(ending, tmp_path):
    file = tmp_path / f"a.{ending}"
    file.write_bytes('question,answer\n"caf\u00e9",3\n'.encode("cp1252"))
    reader = {"csv": lambda file: list(read_rows(file, Report(""))), "json": read_json, "txt": read_text}[ending]
    refused(rf"a\.{ending} is no text in UTF-8 from line 2 on: save it as UTF-8, or, .* run iconv -f CP1252", reader, file)


BROKEN = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "noise": lambda data: b"PAR1" + b"\0" * 60 + b"PAR1",
    "middle": lambda data: data[:2000] + b"\xff" * 3000 + data[5000:],
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_parquet_is_a_sentence(how, tmp_path):
    texts = pa.table({"prompt": [f"a red fox {i}" for i in range(5000)]})
    file = tmp_path / "rows/train.parquet"
    file.parent.mkdir()
    parquet.write_table(texts, file, row_group_size=500)
    file.write_bytes(BROKEN[how](file.read_bytes()))
    readers = [("prompts", file, False), ("prompts", file.parent, False)]
    readers += [("grounding_hf", str(path), streaming) for _, path, _ in readers for streaming in (False, True)]
    for data_set, path, streaming in readers:
        with pytest.raises(ValueError, match=r"is broken.*: write or download (it|its files) again") as raised:
            load(data_set, "datasets")(path, **({"streaming": True} if streaming else {}))
        assert type(raised.value) is ValueError


IMAGE = {"id": 1, "file_name": "a.png", "width": 64, "height": 48}
INSTANCES = {
    "images": [IMAGE],
    "annotations": [{"id": 11, "image_id": 1, "category_id": 3, "bbox": [1, 2, 10, 20]}],
    "categories": [{"id": 3, "name": "cat"}],
}
REFS = [{"ref_id": 5, "ann_id": 11, "image_id": 1, "split": "val", "sentences": [{"sent": "left cat"}, {"sent": "small one"}]}]
BOX = Box(1, 2, 11, 22)
ASKED = ["left cat", "small one"]


@pytest.fixture
def a_png(tmp_path):
    Image.new("RGB", (64, 48), "red").save(tmp_path / "a.png")
    return tmp_path / "a.png"


def refer_folder(tmp_path, suffix):
    (tmp_path / "instances.json").write_text(json.dumps(INSTANCES))
    dumped = pickle.dumps(REFS, protocol=2) if suffix == "p" else json.dumps(REFS).encode()
    (tmp_path / f"refs(unc).{suffix}").write_bytes(dumped)
    return tmp_path


def mdetr(tmp_path):
    images = [IMAGE | {"id": i, "caption": text} for i, text in enumerate(ASKED)]
    annotations = [{"id": i, "image_id": i, "category_id": 3, "bbox": [1, 2, 10, 20], "iscrowd": 0} for i in range(2)]
    path = tmp_path / "finetune_refcoco_val.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": [{"id": 3, "name": "object"}]}))
    return path


def lmms(tmp_path):
    """A row as in the parquet of lmms-lab/RefCOCO."""
    asked = "Please carefully observe the area circled in the image and come up with a caption for the area."
    shown = {"image": {"bytes": (tmp_path / "a.png").read_bytes(), "path": "a.png"}, "file_name": "COCO_train2014_1_5.jpg"}
    drawn = {"segmentation": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "bbox": [1.0, 2.0, 10.0, 20.0], "iscrowd": 0}
    row = {"question_id": "5", "question": asked, "answer": ASKED, **shown, **drawn}
    (tmp_path / "lmms/data").mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "lmms/data/val-00000-of-00001.parquet")
    return tmp_path / "lmms"


def raw(tmp_path):
    """A row as in the parquet of jxu124/refcoco."""
    said = [{"raw": text, "sent": text, "sent_id": i, "tokens": text.split()} for i, text in enumerate(ASKED)]
    raws = {"raw_anns": INSTANCES["annotations"][0], "raw_image_info": IMAGE, "raw_sentences": []}
    shown = {"image_id": 1, "file_name": "a_5.png", "image_path": "a.png", "bbox": [1.0, 2.0, 11.0, 22.0], "split": "val"}
    row = {"ref_id": 5, "ann_id": 11, **shown, "sentences": said, "captions": ASKED}
    row |= {name: json.dumps(value) for name, value in raws.items()}
    path = tmp_path / "validation.parquet"
    parquet.write_table(pa.Table.from_pylist([row]), path)
    return path


PUBLISHED = {
    "refs.p": (lambda folder: refer_folder(folder, "p"), "refcoco"),
    "refs.json": (lambda folder: refer_folder(folder, "json"), "refcoco"),
    "refs file": (lambda folder: refer_folder(folder, "p") / "refs(unc).p", "refcoco"),
    "mdetr": (mdetr, "refcoco_mdetr"),
    "lmms": (lmms, "refcoco_lmms"),
    "raw": (raw, "refcoco_raw"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_refcoco_is_recognised_and_read(name, a_png, tmp_path):
    make, layout = PUBLISHED[name]
    path = make(tmp_path)
    assert guess(path).layout == layout and guess(path).data_set == "grounding_jsonl"
    prompts = load_boxes(path, image_root=tmp_path)
    assert [prompt.text for prompt in prompts] == ASKED
    assert all(prompt.answer == BOX for prompt in prompts)
    done = convert(path, None, tmp_path / "out/boxes.jsonl", tmp_path)
    assert check_file(done.out).ok
    again = load_boxes(done.out)
    assert [(prompt.text, prompt.answer) for prompt in again] == [(text, BOX) for text in ASKED]
    assert all(Image.open(prompt.media[0]).size == (64, 48) for prompt in again)


def test_a_layout_that_knows_its_boxes_is_not_told_how(a_png, tmp_path):
    words = "the layout refcoco_lmms knows how its boxes are written: leave space and box_format out"
    refused(words, load_boxes, lmms(tmp_path), box_format="xywh")
    columns = {"question": "answer", "box": "bbox"}
    [one, _] = load_boxes(tmp_path / "lmms", box_format="xywh", columns=columns)
    assert one.answer == BOX


def test_refcoco_has_splits_and_the_hub_data_set_recognises_it(a_png, tmp_path):
    folder = refer_folder(tmp_path, "p")
    assert len(load_boxes(folder, split="val", image_root=tmp_path)) == 2
    refused("holds no rows", load_boxes, folder, split="testA", image_root=tmp_path)
    found = load("grounding_hf", "datasets")(str(lmms(tmp_path)), split="val")
    assert [(prompt.text, prompt.answer) for prompt in found] == [(text, BOX) for text in ASKED]
    streamed = load("grounding_hf", "datasets")(str(tmp_path / "lmms"), split="val", streaming=True)
    assert [prompt.text for prompt in streamed] == ASKED


def test_boxes_that_disagree_are_named(a_png, tmp_path):
    path = raw(tmp_path)
    rows = parquet.read_table(path).to_pylist()
    parquet.write_table(pa.Table.from_pylist([rows[0] | {"bbox": [5.0, 5.0, 9.0, 9.0]}]), path)
    refused(r"validation\.parquet:1: bbox \[5.0, 5.0, 9.0, 9.0\] is not the box of raw_anns", load_boxes, path)


def test_coco_is_read_as_it_is(a_png, tmp_path, caplog):
    caplog.set_level("INFO", logger="mmrl.loading")
    crowd = {"id": 12, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "iscrowd": 1}
    (tmp_path / "annotations").mkdir()
    path = tmp_path / "annotations/instances.json"
    path.write_text(json.dumps(INSTANCES | {"annotations": [*INSTANCES["annotations"], crowd]}))
    assert (guess(path).layout, guess(path).data_set) == ("coco", "grounding_jsonl")
    [prompt] = load_boxes(path, image_root=tmp_path, template="{question} Say only boxes.")
    assert (prompt.id, prompt.text) == ("1-3", "Locate every cat in the picture. Say only boxes.")
    assert prompt.answer == (Box(1, 2, 11, 22, label="cat"),)
    assert "is read as coco: COCO's instances JSON" in caplog.text and "1 annotations left out: crowd" in caplog.text


def test_bad_entries_of_coco_are_named_one_by_one(a_png, tmp_path):
    path = tmp_path / "instances.json"
    broken = {"id": 12, "image_id": 9, "category_id": 3, "bbox": [1, 2, 3, 4]}
    path.write_text(json.dumps(INSTANCES | {"annotations": [*INSTANCES["annotations"], broken]}))
    refused(r"instances\.json, annotation 12: picture 9 is not listed in the file", load_boxes, path)
    refused(r"(?s)was not converted, .*--fix OUT.*annotation 12", convert, path, "coco", tmp_path / "boxes.jsonl")


class Bomb:
    def __reduce__(self):
        return print, ("code ran",)


def test_a_refs_pickle_that_could_run_code_is_refused_by_the_data_set_too(a_png, tmp_path, capsys):
    folder = refer_folder(tmp_path, "p")
    for dumped in (pickle.dumps([Bomb()]), b"\x80\x02]q\x00(", b"no pickle", b"cos\nsystem\n(S'true'\ntR."):
        (folder / "refs(unc).p").write_bytes(dumped)
        refused(r"refs\(unc\)\.p is not a pickle of plain data", load_boxes, folder)
    assert capsys.readouterr().out == ""


@pytest.fixture
def saved(a_png, tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": f"How many? {i}"}], "images": [str(a_png)], "answer": str(i)} for i in range(3)
    ]
    data = hf.Dataset.from_list(rows).cast_column("images", hf.List(hf.Image()))
    hf.DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


def test_data_sets_that_hugging_face_saved(saved, tmp_path):
    assert (guess(saved).layout, guess(saved).data_set) == ("messages", "qa_jsonl")
    prompts = load_questions(saved)
    assert [prompt.answer for prompt in prompts] == ["0", "1", "2"] and prompts[2].media[0].size == (64, 48)
    assert len({prompt.id for prompt in prompts}) == 3
    done = convert(saved, None, tmp_path / "out.jsonl", split="test")
    assert done.num_rows == 1 and load_questions(done.out)[0].answer == "0"


def test_folders_of_pictures(a_png, tmp_path):
    for split in ("train", "test"):
        (tmp_path / "shapes" / split).mkdir(parents=True)
        Image.new("RGB", (64, 48), "blue").save(tmp_path / "shapes" / split / "b.png")
        line = {"file_name": "b.png", "question": "Which colour?", "answer": f"blue in {split}"}
        (tmp_path / "shapes" / split / "metadata.jsonl").write_text(json.dumps(line) + "\n")
    assert [prompt.answer for prompt in load_questions(tmp_path / "shapes")] == ["blue in train"]
    (tmp_path / "shapes/train").rename(tmp_path / "shapes/a")
    refused("holds the splits a, test: choose one with `split`", load_questions, tmp_path / "shapes")
    (tmp_path / "shapes/a").rename(tmp_path / "shapes/train")
    [prompt] = load_questions(tmp_path / "shapes", split="test")
    assert prompt.answer == "blue in test" and prompt.media == (str(tmp_path / "shapes/test/b.png"),)
    flat = tmp_path / "shapes/train"
    assert guess(flat).layout == "questions"
    (flat / "metadata.jsonl").unlink()
    (flat / "metadata.csv").write_text('file_name,question,answer\nb.png,"Which colour?",blue\n../a.png,Which?,red\n')
    refused(r"metadata\.csv:3: the path '\./\.\./a\.png' leads out of the folder", load_questions, flat)


def test_names_inside_a_table_never_choose_where_pictures_are_written(a_png, tmp_path):
    row = {"question": "What?", "answer": "red", "image": {"bytes": a_png.read_bytes(), "path": "../../evil.png"}}
    path = tmp_path / "in/rows.parquet"
    path.parent.mkdir()
    parquet.write_table(pa.Table.from_pylist([row, row | {"question": "And now?"}]), path)
    done = convert(path, None, tmp_path / "out/rows.jsonl")
    assert done.num_rows == 2 and done.num_pictures == 1
    assert not list(tmp_path.rglob("evil.png")) and not (tmp_path.parent / "evil.png").exists()
    [written] = (tmp_path / "out/rows_pictures").iterdir()
    assert written.suffix == ".png" and load_questions(done.out)[0].media == (str(written),)


def test_python_in_a_folder_of_data_is_not_run(a_png, tmp_path):
    folder = lmms(tmp_path)
    for name in ("lmms.py", "data.py", "conftest.py", "data/val.py"):
        (folder / name).write_text(f"from pathlib import Path\nPath({str(tmp_path / 'fuse')!r}).touch()\n")
    refused(r"cannot be read \(.*lmms\.py\): give its data files alone, without Python beside them", load_boxes, folder)
    (folder / "lmms.py").unlink()
    assert len(load_boxes(folder)) == 2
    assert not (tmp_path / "fuse").exists()


def test_broken_tables_are_named(tmp_path):
    (tmp_path / "table").mkdir()
    for name in ("a.parquet", "b.arrow"):
        file = tmp_path / "table" / name
        file.write_bytes(b"PAR1 no table")
        refused(rf"{name} is broken: write or download it again", guess, tmp_path / "table")
        file.unlink()
    refused("has none of the layouts that are known", guess, tmp_path / "table")


@pytest.mark.parametrize(
    ("data_set", "row", "words"),
    [
        (
            "qa_jsonl",
            {"image": "a.png", "question": "?", "box": [1, 2, 3, 4]},
            r"read as boxes .*\(--task grounding\) and not for qa_jsonl",
        ),
        ("grounding_jsonl", {"question": "1 + 1?", "answer": 2}, r"read as questions .*\(--task qa\) .*columns\.box = NAME"),
        ("grounding_jsonl", {"prompt": "a red fox"}, r"read as prompts .*data for prompts and not for grounding_jsonl"),
    ],
)
def test_data_of_another_task_is_refused_in_one_sentence(data_set, row, words, tmp_path, a_png):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row))
    refused(words, load(data_set, "datasets"), tmp_path / "rows.jsonl")


def test_questions_without_boxes_and_answers_are_told_what_they_lack(tmp_path, a_png):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"image": "a.png", "question": "?", "bounds": [1, 2, 3, 4]}))
    words = r"neither boxes nor answers that are called so \(bounds, image, question\): .*columns\.box=NAME"
    refused(words, guess, tmp_path / "rows.jsonl")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le", "utf-32"])
def test_text_that_windows_saved_as_utf_16_is_told_how_to_become_utf_8(encoding, tmp_path, a_png):
    row = {"image": "a.png", "question": "?", "box": [1, 2, 30, 40]}
    (tmp_path / "wide.jsonl").write_text(json.dumps(row), encoding=encoding)
    words = r"wide\.jsonl is text in UTF-16 or UTF-32.*: save it as UTF-8 in the editor, or run iconv"
    refused(words, load_boxes, tmp_path / "wide.jsonl")
    (tmp_path / "narrow.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(row).encode() + b"\r\n")
    assert len(load_boxes(tmp_path / "narrow.jsonl")) == 1
    (tmp_path / "wide.txt").write_text("a fox", encoding="utf-16")
    refused(r"wide\.txt is text in UTF-16 .*: save it as UTF-8", load("prompts", "datasets"), tmp_path / "wide.txt")


def test_lost_pictures_are_told_where_paths_start_once(tmp_path, a_png):
    row = {"image": "x.png", "question": "?", "box": [1, 2, 30, 40]}
    lost = "\n".join(json.dumps(row | {"image": f"{i}.png"}) for i in range(3))
    (tmp_path / "rows.jsonl").write_text(lost)
    words = "none of the pictures is there: their paths start at the file's folder unless --image-root"
    refused(words, load_boxes, tmp_path / "rows.jsonl")
    (tmp_path / "rows.jsonl").write_text(f"{lost}\n{json.dumps(row | {'image': 'a.png'})}")
    with pytest.raises(ValueError) as found:
        load_boxes(tmp_path / "rows.jsonl")
    assert "none of the pictures" not in str(found.value)


@pytest.mark.parametrize("box", ["1,2,30,40", ["1", "2", "30", "40"], "[1, 2, 30, 40]"])
def test_boxes_in_quotes_are_told_how_to_be_written(box, tmp_path, a_png):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"image": "a.png", "question": "?", "box": box}))
    refused(r"write \[10, 20, 200, 180\], numbers in brackets and no text", load_boxes, tmp_path / "rows.jsonl")
