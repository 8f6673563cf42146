"""Hugging Face data sets: where they come from, lazy pictures, and the trap of the folder called datasets."""

import io
import sys
from types import ModuleType

import datasets
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from mmrl.answers.boxes.box import Box
from mmrl.app.plugins.resolve import load
from mmrl.data.grounding import GroundingLayout
from mmrl.data.layouts.load import hf_prompts
from mmrl.data.readers import import_extra, open_hf, read_json, read_rows, read_text
from mmrl.data.validate import Report
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
    assert first == (
        2,
        {"image": "a.png", "question": 'How many, if "any"?', "answer": "3", "box": [1, 2, 3, 4], "width": 64},
    )
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
