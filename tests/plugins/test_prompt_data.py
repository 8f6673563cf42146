"""Prompts to draw from: lines of a file, objects of a JSONL file, or texts of a config."""

import json

import pytest

from mmrl.data.validate import FILE_ROW, check


def test_lines_of_a_text_file(dataset, tmp_path):
    (tmp_path / "a.txt").write_text("\ufeffa red fox\n\n  two dogs \r\na red fox\n", encoding="utf-8")
    prompts = dataset("prompts")(tmp_path / "a.txt")
    assert [(prompt.id, prompt.text) for prompt in prompts] == [("1", "a red fox"), ("3", "two dogs"), ("4", "a red fox")]
    assert [prompt.columns[FILE_ROW] for prompt in prompts] == ["a.txt:1", "a.txt:3", "a.txt:4"]
    assert not prompts[0].media and prompts[0].answer is None
    assert check(prompts).ok


def test_objects_of_a_jsonl_file_with_their_columns(dataset, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a fox", "animal": "fox"}\n{"prompt": "dogs", "id": "d", "number": 2}\n')
    first, second = dataset("prompts")(str(tmp_path / "a.jsonl"))
    assert (first.id, first.columns) == ("1", {"animal": "fox", FILE_ROW: "a.jsonl:1"})
    assert (second.id, second.text, second.columns["number"]) == ("d", "dogs", 2)
    (tmp_path / "b.jsonl").write_text('{"caption": "a fox"}\n')
    assert dataset("prompts")(tmp_path / "b.jsonl", column="caption")[0].text == "a fox"


def test_texts_of_a_config(dataset):
    assert [(prompt.id, prompt.text) for prompt in dataset("prompts")(texts=["a fox", "dogs"])] == [("1", "a fox"), ("2", "dogs")]


def test_errors_name_file_and_line(dataset, tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"prompt": "x", "id": 1}\nnonsense\n{"words": "y"}\n{"prompt": "z", "id": "1"}\n{"prompt": " "}'
    )
    with pytest.raises(ValueError, match="cannot be trained on") as caught:
        dataset("prompts")(tmp_path / "a.jsonl")
    for sentence in (
        "a.jsonl:2: this is not JSON",
        "a.jsonl:3: column prompt is missing, and must hold the text of the prompt (the row has words)",
        "a.jsonl:4: id '1' was used before",
        "a.jsonl:5: column prompt is ' '",
    ):
        assert sentence in str(caught.value)


def test_what_cannot_be_read_is_said(dataset, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="holds no rows"):
        dataset("prompts")(tmp_path / "empty.txt")
    with pytest.raises(FileNotFoundError, match=r"nope\.txt does not exist"):
        dataset("prompts")(tmp_path / "nope.txt")
    (tmp_path / "latin.txt").write_bytes("fünf".encode("latin-1"))
    with pytest.raises(ValueError, match="no text in UTF-8"):
        dataset("prompts")(tmp_path / "latin.txt")
    for both_or_none in ({}, {"path": "a.txt", "texts": ["x"]}):
        with pytest.raises(ValueError, match=r"set data\.path, data\.texts or data\.writer"):
            dataset("prompts")(**both_or_none)


def test_prompts_that_a_writer_makes_up(dataset):
    prompts = dataset("prompts")(writer="lettering", size=20, split="held_out", seed=3)
    assert len(prompts) == 20 and all(f'"{prompt.columns["target"]}"' in prompt.text for prompt in prompts)
    assert len(dataset("prompts")(writer="numbers")) == 72
    with pytest.raises(ValueError, match=r"data\.size belongs to data\.writer"):
        dataset("prompts")(texts=["a fox"], size=1)
    with pytest.raises(ValueError, match=r"reads one source"):
        dataset("prompts")(texts=["a fox"], writer="numbers")


@pytest.mark.parametrize("column", ["prompt", "caption", "text"])
def test_prompts_of_tables_and_of_folders_with_pictures(dataset, tmp_path, column):
    (tmp_path / "a.csv").write_text(f'{column},width,height\n"a fox, red",512,256\n')
    [prompt] = dataset("prompts")(tmp_path / "a.csv")
    assert prompt.text == "a fox, red" and (prompt.columns["width"], prompt.columns["height"]) == (512, 256)
    for split in ("train", "test"):
        (tmp_path / "pictures" / split).mkdir(parents=True)
        (tmp_path / "pictures" / split / "metadata.jsonl").write_text(json.dumps({"file_name": "a.png", column: f"a {split}"}))
    assert [prompt.text for prompt in dataset("prompts")(tmp_path / "pictures")] == ["a train"]
    [prompt] = dataset("prompts")(tmp_path / "pictures", split="test")
    assert (prompt.text, prompt.media, "image" in prompt.columns) == ("a test", (), False)
