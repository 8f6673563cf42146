"""Reading grounding files: good rows become prompts, every bad row is named by file and line."""

import json

import pytest

from mmrl.answers.boxes.box import Box
from mmrl.app.plugins.resolve import load
from mmrl.data.grounding import GroundingLayout
from mmrl.data.validate import FILE_ROW
from tests.support.grounding import check_file


@pytest.fixture
def load_jsonl():
    return load("grounding_jsonl", "datasets")


def test_rows_become_prompts(picture, jsonl, tmp_path, load_jsonl):
    picture("photos/cat.png")
    path = jsonl(
        {"image": "photos/cat.png", "question": "Where is the cat?", "box": [1, 2, 30, 40], "id": 7, "scene": "garden"},
        "",
        {"image": "photos/cat.png", "question": "cats", "boxes": [{"bbox": [0, 0, 5.5, 6], "label": "cat"}, [1, 1, 2, 2]]},
        {
            "image": ["photos/cat.png"] * 2,
            "question": "<image>one<image>two",
            "bbox": {"bbox_2d": [0, 0, 1, 1]},
            "space": "norm1",
        },
        {"image": "photos/cat.png", "question": "none", "boxes": [], "size": [64, 48]},
    )
    one, several, shares, none = load_jsonl(path)
    assert (one.id, one.text, one.answer) == ("7", "Where is the cat?", Box(1, 2, 30, 40))
    assert one.media == (str(tmp_path / "photos/cat.png"),)
    assert one.columns == {"scene": "garden", FILE_ROW: "boxes.jsonl:1", "size": (64, 48)}
    assert several.id == "boxes-3"
    assert several.answer == (Box(0, 0, 5.5, 6, label="cat"), Box(1, 1, 2, 2))
    assert shares.answer == Box(0, 0, 1, 1, "norm1") and len(shares.media) == 2
    assert none.answer == ()


def test_names_spaces_and_texts_can_be_mapped(picture, jsonl, load_jsonl, tmp_path):
    picture("cat.png")
    path = jsonl(
        {"file": "cat.png", "refs": ["the {cat}", "it"], "where": [100, 100, 500, 400], "question": "other"}, name="sub/b.jsonl"
    )
    columns = {"image": "file", "question": "refs", "box": "where"}
    first, second = load_jsonl(
        path, image_root=tmp_path, space="norm1000", box_format="xywh", columns=columns, template="Find {question}."
    )
    assert (first.text, second.text) == ("Find the {cat}.", "Find it.")
    assert (first.id, second.id) == ("b-1-0", "b-1-1")
    assert first.answer == second.answer == Box(100, 100, 600, 500, "norm1000")
    assert first.columns["question"] == "other"


def test_parquet_and_json_read_alike(picture, jsonl, tmp_path, load_jsonl):
    import pyarrow
    import pyarrow.parquet

    picture("cat.png")
    rows = [{"image": "cat.png", "question": f"q{i}", "boxes": [[0.0, 0.0, 5.0, i + 1.0]]} for i in range(3)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "boxes.parquet")
    (tmp_path / "boxes.json").write_text(json.dumps(rows))
    read = [
        [(prompt.id, prompt.text, prompt.answer) for prompt in load_jsonl(path)]
        for path in (jsonl(*rows), tmp_path / "boxes.parquet", tmp_path / "boxes.json")
    ]
    assert read[0] == read[1] == read[2]


def test_splits_by_column_and_by_file(picture, jsonl, tmp_path, load_jsonl):
    row = {"image": picture("cat.png"), "question": "q", "box": [0, 0, 5, 5]}
    path = jsonl(row | {"split": "train"}, row | {"split": "test"}, row | {"split": "train"}, name="train.jsonl")
    assert [prompt.id for prompt in load_jsonl(path, split="train")] == ["train-1", "train-3"]
    assert len(load_jsonl(tmp_path, split="train")) == 3
    with pytest.raises(ValueError, match="give split=NAME"):
        load_jsonl(tmp_path)
    with pytest.raises(ValueError, match="holds no rows"):
        load_jsonl(path, split="val")
    with pytest.raises(ValueError, match="column split is missing"):
        load_jsonl(jsonl(row), split="train")


GOOD = {"image": "cat.png", "question": "q", "box": [0, 0, 5, 5]}
BAD = {
    "missing file": (GOOD | {"image": "dog.png"}, r"dog\.png does not exist"),
    "no image": ({"question": "q", "box": [0, 0, 5, 5]}, r"column image or images is missing.*the row has question, box"),
    "no question": ({"image": "cat.png", "box": [0, 0, 5, 5]}, "column question is missing"),
    "no box": ({"image": "cat.png", "question": "q"}, "column boxes or box or bbox is missing"),
    "two boxes columns": (GOOD | {"bbox": [0, 0, 1, 1]}, "box, bbox all look like the box"),
    "empty question": (GOOD | {"question": " "}, "must be a text that is not empty"),
    "question is a number": (GOOD | {"question": 3}, "must be a text"),
    "image is a number": (GOOD | {"image": 3}, "picture must be a path"),
    "outside": (GOOD | {"box": [0, 0, 65, 5]}, r"box \[0, 0, 65, 5\] \(pixel\) lies outside its space, which is 64 wide"),
    "outside shares": (GOOD | {"box": [0, 0, 5, 5], "space": "norm1"}, "lies outside its space, which is 1 wide"),
    "inverted": (GOOD | {"box": [5, 5, 0, 0]}, "has no area"),
    "three numbers": (GOOD | {"box": [1, 2, 3]}, "four numbers"),
    "text in box": (GOOD | {"box": [1, 2, 3, "4"]}, "four numbers"),
    "not finite": (GOOD | {"box": [1, 2, 3, float("nan")]}, "four numbers"),
    "box is text": (GOOD | {"box": "1 2 3 4"}, "must be a list of boxes"),
    "unknown space": (GOOD | {"space": "percent"}, "space 'percent'"),
    "resized": (GOOD | {"space": "resized"}, "depends on the model"),
    "wrong size": (GOOD | {"size": [48, 64]}, r"size \[48, 64\], but it has \[64, 48\]"),
    "markers": (GOOD | {"question": "<image><image>?"}, "2 <image> markers for 1 pictures"),
    "repeated id": (GOOD | {"id": "a"}, "id 'a' was used before"),
    "not JSON": ('{"image": ', "not JSON"),
    "not an object": ("[1, 2]", "one JSON object, not list"),
    "too deep": ("[" * 100_000, "not JSON"),
    "broken picture": (GOOD | {"image": "broken.png"}, r"broken\.png is broken or cut short"),
    "not a picture": (GOOD | {"image": "boxes.jsonl"}, "cannot be read"),
}


@pytest.mark.parametrize(("row", "says"), BAD.values(), ids=BAD)
def test_a_bad_row_is_named_by_file_and_line(row, says, picture, jsonl, tmp_path, load_jsonl):
    whole = (tmp_path / picture("cat.png")).read_bytes()
    (tmp_path / "broken.png").write_bytes(whole[: len(whole) // 2])
    path = jsonl(GOOD | {"id": "a"}, row)
    with pytest.raises(ValueError, match=rf"boxes\.jsonl:2: .*{says}"):
        load_jsonl(path)


def test_all_bad_rows_are_counted_and_the_first_listed(picture, jsonl):
    picture("cat.png")
    path = jsonl(*[GOOD | {"image": "dog.png"}] * 5, GOOD, "oops")
    report = check_file(path, limit=3)
    assert (report.num_rows, report.num_problems) == (7, 6)
    assert [problem.place for problem in report.problems] == ["boxes.jsonl:1", "boxes.jsonl:2", "boxes.jsonl:3"]
    assert str(report).endswith("and 3 more") and "7 rows, 6 problems" in str(report)


def test_check_file_decodes_every_picture(picture, jsonl, tmp_path):
    whole = bytearray((tmp_path / picture("cat.png", (300, 200))).read_bytes())
    path = jsonl(GOOD)
    assert check_file(path).ok
    whole[len(whole) // 2] ^= 0xFF
    (tmp_path / "cat.png").write_bytes(whole)
    assert "cat.png is broken" in str(check_file(path))


def test_an_empty_file_is_a_problem(jsonl, load_jsonl):
    with pytest.raises(ValueError, match=r"boxes\.jsonl: holds no rows"):
        load_jsonl(jsonl())
    assert not check_file(jsonl("")).ok


def test_other_mistakes_are_named(tmp_path, jsonl, load_jsonl):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl does not exist"):
        load_jsonl(tmp_path / "nowhere.jsonl")
    with pytest.raises(ValueError, match=r"ends in '\.xlsx'"):
        load_jsonl(jsonl(name="boxes.xlsx"))
    with pytest.raises(ValueError, match="columns maps picture"):
        load_jsonl(jsonl(), columns={"picture": "image"})
    with pytest.raises(ValueError, match="question"):
        GroundingLayout(template="Where?")
    with pytest.raises(ValueError, match="resized"):
        GroundingLayout(space="resized")
    (tmp_path / "map.json").write_text("{}")
    with pytest.raises(ValueError, match="must hold a list"):
        load_jsonl(tmp_path / "map.json")
