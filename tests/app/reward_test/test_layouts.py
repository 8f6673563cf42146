"""`mmrl reward test --data` reads the layouts that runs read."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.app.commands import reward as tools
from mmrl.app.reward_test.probes import Style, read_tasks, text_groups
from mmrl.core.types import Prompt


def swift(folder: Path, names: Sequence[str]) -> str:
    asked = [{"role": "user", "content": "<image>Where?"}, {"role": "assistant", "content": "<bbox>"}]
    rows = [
        {"messages": asked, "images": [name], "objects": {"ref": [], "bbox": [[i + 1, 2 * i + 1, 20 + i, 30]]}}
        for i, name in enumerate(names)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "rows.jsonl"


def llava(folder: Path, names: Sequence[str]) -> str:
    rows = [
        {
            "image": name,
            "conversations": [{"from": "human", "value": "<image>\nHow many?"}, {"from": "gpt", "value": str(2 * i + 3)}],
            "completions": [str(2 * i + 3), "none"],
        }
        for i, name in enumerate(names)
    ]
    (folder / "rows.json").write_text(json.dumps(rows))
    return "rows.json"


def coco(folder: Path, names: Sequence[str]) -> str:
    boxes = [{"id": i, "image_id": i, "category_id": 3, "bbox": [5 * i, 2 * i, 10, 20], "iscrowd": 0} for i in range(8)]
    images = [{"id": i, "file_name": name, "width": 64, "height": 48} for i, name in enumerate(names)]
    found = {"images": images, "annotations": boxes, "categories": [{"id": 3, "name": "cat"}]}
    (folder / "instances.json").write_text(json.dumps(found))
    return "instances.json"


def problem(folder: Path, names: Sequence[str]) -> str:
    rows = [
        {"image": name, "problem": "Where?", "solution": f"<answer>[{i + 1}, {i}, 30, 40]</answer>"}
        for i, name in enumerate(names)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "rows.jsonl"


LAYOUTS: dict[str, tuple[Callable[[Path, Sequence[str]], str], str]] = {
    "messages": (swift, "iou"),
    "llava": (llava, "number"),
    "coco": (coco, "iou"),
    "problem": (problem, "iou"),
}


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    for i in range(8):
        Image.new("RGB", (64, 48), (i * 9, 0, 0)).save(tmp_path / f"{i}.png")
    return [f"{i}.png" for i in range(8)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_peoples_layouts_are_translated_and_said(
    layout: str, tmp_path: Path, names: list[str], capsys: pytest.CaptureFixture[str]
):
    write, reward = LAYOUTS[layout]
    file = write(tmp_path, names)
    assert tools.test(reward, [], tools.RewardTestOptions(data=file)), capsys.readouterr().out
    said = " ".join(capsys.readouterr().out.split())
    assert f"{file}: read as {layout}: " in said and "guessed, --as NAME says otherwise" in said and f"{reward} on 8" in said


def test_completions_of_a_translated_row_are_scored(tmp_path: Path, names: list[str], capsys: pytest.CaptureFixture[str]):
    file = llava(tmp_path, names)
    tools.score("number", [], file)
    assert "16 scored, mean 0.5, 0 to 1" in capsys.readouterr().out


def test_two_layouts_are_refused_unless_one_is_said(tmp_path: Path, names: list[str]):
    row = {"image": "0.png", "messages": [{"role": "user", "content": "Where?"}], "answer": "[1, 2, 30, 40]"}
    (tmp_path / "two.jsonl").write_text(json.dumps({**row, "conversations": [{"from": "human", "value": "There?"}]}))
    with pytest.raises(ValueError, match="may be messages or llava: say which, with --as messages or --as llava"):
        read_tasks(tmp_path / "two.jsonl")
    [task] = read_tasks(tmp_path / "two.jsonl", "llava")
    assert task.prompt.text == "There?"
    with pytest.raises(ValueError, match="--as llava is about a file, and shapes is a data set or no file"):
        tools.test("iou", [], tools.RewardTestOptions("llava", data="shapes"))


def test_pictures_may_lie_in_another_folder(tmp_path: Path, names: list[str]):
    files = [llava(tmp_path, names), str(tmp_path / "own.jsonl")]
    (tmp_path / "own.jsonl").write_text(json.dumps({"prompt": "How many?", "image": "0.png", "answer": "2"}))
    (tmp_path / "photos").mkdir()
    for name in names:
        (tmp_path / name).rename(tmp_path / "photos" / name)
    for file in files:
        found = read_tasks(Path(file), image_root=tmp_path / "photos")
        assert all(str(tmp_path / "photos") in str(task.prompt.media[0]) for task in found)
    with pytest.raises(ValueError, match="--image-root photos is about a file, and shapes is a data set or no file"):
        tools.test("iou", [], tools.RewardTestOptions(image_root=Path("photos"), data="shapes"))
    (tmp_path / "prompts.txt").write_text("a fox\n")
    with pytest.raises(ValueError, match="command line: image_root is unknown"):
        read_tasks(tmp_path / "prompts.txt", image_root=tmp_path)


@pytest.mark.parametrize(
    ("row", "outputs"),
    [
        ({"prompt": "a fox", "image": "0.png"}, 1),
        ({"prompt": "1 + 1?", "answer": "2", "completions": ["2", "3"]}, 2),
        ({"problem": "1 + 1?", "solution": "2", "completion": "2"}, 1),
    ],
)
def test_rows_with_outputs_are_no_questions(tmp_path: Path, names: list[str], row: dict[str, Any], outputs: int):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    [task] = read_tasks(tmp_path / "rows.jsonl")
    assert len(task.samples) == outputs and task.draws == ("image" in row)


def test_bad_rows_are_named_with_the_layout_that_they_were_read_as(tmp_path: Path, names: list[str]):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": " "}], "answer": 1}))
    with pytest.raises(ValueError, match=re.escape("(read as messages: ") + r"(.|\n)*rows\.jsonl:1: the question is"):
        read_tasks(tmp_path / "rows.jsonl")


def test_data_without_answers_are_refused_with_both_remedies():
    with pytest.raises(ValueError, match="take data with answers; if the reward scores pictures, write `Modality: image`"):
        text_groups([Prompt("1", "a red fox")], Style("norm1000", None))
