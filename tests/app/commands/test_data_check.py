"""`mmrl data check` recognises the layouts that runs read."""

import json
from pathlib import Path

import pytest

from mmrl.app.commands.data import check
from mmrl.data.layouts.guess import guess, guess_layout

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
    "qa.csv": ("video_id,frame_count,width,height,question,answer,qid,type,a0,a1,a2,a3,a4\n", "next_gqa"),
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
    assert guess_layout(tmp_path / name) == known
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
