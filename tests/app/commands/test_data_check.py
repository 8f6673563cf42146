"""`mmrl data check` recognises the layouts that runs read."""

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmrl.app.cli.groups import data
from mmrl.app.commands.data import check
from mmrl.data.layouts.source import guess

R1 = {
    "problem_id": 1,
    "problem": "what?",
    "data_type": "video",
    "problem_type": "free-form",
    "solution": "<answer>a</answer>",
    "path": "a.mp4",
}
LAYOUTS = {
    "r1.jsonl": (json.dumps(R1), "video_r1"),
    "r1.json": (json.dumps([R1]), "video_r1"),
    "charades.txt": ("AO8RW 0.0 6.9##a person sits", "charades_sta"),
    "captions.json": ('{"v_a": {"duration": 9, "timestamps": [[0, 1]], "sentences": ["a"]}}', "activitynet_captions"),
    "clevrer.json": ('[{"video_filename": "a.mp4", "questions": []}]', "clevrer"),
    "qa.csv": (
        "video_id,frame_count,width,height,question,answer,qid,type,a0,a1,a2,a3,a4\n1,2,3,4,q,a,0,CW,a,b,c,d,e\n",
        "next_gqa",
    ),
    "prompts.txt": ("a red fox", "prompts"),
    "prompts.jsonl": ('{"prompt": "a red fox"}', "prompts"),
    "boxes.jsonl": ('{"image": "a.png", "question": "q", "box": [0, 0, 1, 1]}', "boxes"),
    "boxes.json": ('[{"image": "a.png", "prompt": "x", "question": "q", "bbox": [0, 0, 1, 1]}]', "boxes"),
    "empty.jsonl": ("", None),
    "broken.json": ("{", None),
    "other.csv": ("a,b\n", None),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_recognised(tmp_path: Path, name: str):
    text, known = LAYOUTS[name]
    (tmp_path / name).write_text(text)
    if known is None:
        with pytest.raises(ValueError, match=r"has none of the layouts that are known|is not JSON"):
            guess(tmp_path / name)
        return
    assert guess(tmp_path / name).layout == known
    assert guess(tmp_path / name).data_set == ("grounding_jsonl" if known == "boxes" else known)


def test_files_that_are_not_there_or_broken(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        guess(tmp_path / "none.jsonl")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        check(str(tmp_path / "broken.json"), [])


def test_a_file_of_the_video_task_is_checked_as_the_task_reads_it(tmp_path: Path):
    (tmp_path / "r1.jsonl").write_text(json.dumps(R1) + "\n")
    with pytest.raises(ValueError, match=r"r1\.jsonl:1: video .*a\.mp4"):
        check(str(tmp_path / "r1.jsonl"), [])


def test_duplicate_prompts_are_problems_of_a_check(tmp_path: Path):
    (tmp_path / "prompts.txt").write_text("a fox\na dog\na fox\n")
    with pytest.raises(ValueError, match=r"prompts\.txt:3: the row says exactly what prompts\.txt:1 says"):
        check(str(tmp_path / "prompts.txt"), [])
    (tmp_path / "prompts.txt").write_text("a fox\na dog\n")
    said = check(str(tmp_path / "prompts.txt"), [])
    assert "(read as prompts: " in said and "2 rows, 0 problems" in said


def run(*words: str) -> str:
    result = CliRunner().invoke(data, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_commands_words(tmp_path: Path):
    Image.new("RGB", (64, 48), "red").save(tmp_path / "a.png")
    turns = [{"from": "human", "value": "<image>Where?"}, {"from": "gpt", "value": [8, 6, 8, 12]}]
    row = {"image": "a.png", "chat": turns, "split": "train"}
    (tmp_path / "llava.json").write_text(json.dumps([row, row | {"split": "test", "chat": [*turns, *turns]}]))
    file, words = str(tmp_path / "llava.json"), ["columns.conversations=chat"]
    out = str(tmp_path / "right.jsonl")
    said = run("check", file, *words, "--as", "llava", "--boxes", "xywh", "--fix", out)
    assert (
        "read as llava" in said and "1 rows written, 1 of 2 left out" in said and "1 x the conversation has .. questions" in said
    )
    assert "read as boxes: a picture, a question and boxes in every row; guessed, --as NAME" in run("check", out)
    assert "1 rows, 0 problems" in run("check", out)
    assert json.loads(Path(out).read_text())["box"] == [8, 6, 16, 18]
    said = run("convert", file, str(tmp_path / "all.jsonl"), *words, "--turns", "each")
    assert "3 rows, 1 pictures" in said and "guessed, --as NAME says otherwise" in said
    (tmp_path / "p.txt").write_text("a fox")
    assert "; as you say)" in run("check", str(tmp_path / "p.txt"), "--as", "prompts")


@pytest.mark.parametrize("name", ["boxes.jsonl", "prompts.jsonl"])
def test_half_a_character_is_found_by_file_and_line(tmp_path: Path, name: str):
    text = LAYOUTS[name][0].replace('"q"', '"q \\ud800"').replace("a red fox", "a red \\ud800").replace("1, 1]", "8, 8]")
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    (tmp_path / name).write_text(text + "\n")
    ended = CliRunner().invoke(data, ["check", str(tmp_path / name)])
    said = f"{ended.output} {ended.exception}"
    assert f"{name}:1" in said and "half of a character" in said
