"""The folder of an evaluation that was killed before its first sample was written, and whose prompts are the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.app.config.run import load
from mmrl.app.run.evaluation_folder import EvaluationDir, Subject
from mmrl.app.run.sample_files import digest_of_prompt
from mmrl.core.types import Prompt, Video
from mmrl.data.validate import FILE_ROW


def test_one_that_has_no_samples_file_yet_begins_again(tmp_path: Path):
    place, config = EvaluationDir(tmp_path / "eval"), load("tiny/image", []).config
    subject = Subject("tiny:qwen3_vl as it is", "digest", 2)
    place.begin(subject, config)
    place.predictions.unlink()
    place.begin(subject, config)
    assert place.is_begun and place.predictions.read_bytes() == b""
    assert not place.differences(subject, config)


def test_prompts_are_the_same_while_they_say_and_show_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def prompt(folder: str = "a", colour: str = "red", seconds: bytes = b"12", **other: Any) -> Prompt:
        (tmp_path / folder).mkdir(exist_ok=True)
        Image.new("RGB", (4, 4), colour).save(picture := tmp_path / folder / "cat.bmp")
        (clip := tmp_path / folder / "cat.mp4").write_bytes(seconds)
        columns = {"target": str(picture), "drawn": Image.new("L", (2, 2)), "row": np.arange(9000), FILE_ROW: folder}
        media = (str(picture), Video(str(clip), start=1.0), Image.new("RGB", (3, 3), colour))
        return replace(Prompt("7", "Where?", media, Box(0, 0, 1, 1), columns), **other)

    known = digest_of_prompt(prompt())
    assert digest_of_prompt(prompt("moved")) == known
    monkeypatch.chdir(tmp_path / "a")
    shown = prompt().media
    assert digest_of_prompt(replace(prompt(), media=("cat.bmp", Video("cat.mp4", start=1.0), shown[2]))) == known
    changed: list[dict[str, Any]] = [
        {"colour": "blue"},
        {"seconds": b"123"},
        *({"id": "8"}, {"text": "What?"}, {"answer": Box(0, 0, 1, 2)}, {"media": shown[:1]}, {"source": "b"}),
        {"columns": {**prompt().columns, "row": np.arange(9000) % 8999}},
        {"media": (shown[0], Video(str(tmp_path / "a" / "cat.mp4")), shown[2])},
    ]
    found = [digest_of_prompt(prompt(**one)) for one in changed]
    assert len({known, *found}) == 1 + len(found)
