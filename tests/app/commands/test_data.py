"""`mmrl data filter` on a real, tiny model."""

import json
from pathlib import Path

import pytest
from PIL import Image

from mmrl.app.commands.filter import keep_by_difficulty


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three pictures; a reward that is always right for the first, never for the second, every other time for the third."""
    monkeypatch.chdir(tmp_path)
    rows = []
    for i, color in enumerate(("red", "green", "blue")):
        Image.new("RGB", (60, 40), color).save(tmp_path / f"{color}.png")
        rows.append({"id": str(i), "image": f"{color}.png", "question": "Where?", "boxes": [[1, 2, 30, 20]], "note": color})
    Path("boxes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("lucky.py").write_text(
        "def lucky(group):\n"
        "    share = {'0': 1, '1': 0, '2': 2}[group.prompt.id]\n"
        "    return [float(share == 1 or (share == 2 and i % 2)) for i in range(len(group.samples))]\n"
    )
    file = tmp_path / "run.toml"
    file.write_text(
        '[algorithm]\npreset = "grpo"\n[policy]\nmodel = "tiny:qwen3_vl"\nsampling = {max_new_tokens = 2}\n'
        '[data]\nuse = "grounding_jsonl"\npath = "boxes.jsonl"\n[[reward]]\nuse = "./lucky.py"\n'
    )
    return file


def test_keeps_what_is_right_sometimes(config: Path):
    kept = keep_by_difficulty(str(config), Path("kept/easy.jsonl"), [], 4, (0.1, 0.9), 0.5)
    assert str(kept) == "1 prompts kept, 1 too easy, 1 too hard"
    [row] = map(json.loads, Path("kept/easy.jsonl").read_text().splitlines())
    assert row == {
        "id": "2",
        "image": str(config.parent / "blue.png"),
        "question": "Where?",
        "boxes": [[1, 2, 30, 20]],
        "space": "pixel",
        "note": "blue",
    }


def test_pictures_without_a_path_are_refused_before_the_model_loads(tmp_path: Path):
    with pytest.raises(ValueError, match="cannot be written as JSONL"):
        keep_by_difficulty("tiny/image", tmp_path / "out.jsonl", ["policy.model=nowhere"], 2, (0.1, 0.9), 0.5)
