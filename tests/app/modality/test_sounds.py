"""A run of sounds from one line to its export: samples, report, a drawn file, a card whose lines load it in plain diffusers."""

import json
import wave
from pathlib import Path

import pytest

from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.export.export import export
from mmrl.app.one_prompt import draw
from mmrl.lab.tiny.flow.pipelines import build as build_tiny

ROWS = [{"prompt": "a hum", "band": [0, 3], "span": [0.25, 0.75]}, {"prompt": "a bell", "band": [3, 8], "span": [0, 0.5]}]
SHORT = ["steps=1", "algorithm.group_size=2", "prompts_per_step=2", "policy.seconds=1.0", "evaluation.num_prompts=1"]


@pytest.fixture(autouse=True)
def rows(empty_desk: None) -> None:
    for name in ("train", "test"):
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, ROWS)))


def test_a_line_trains_draws_and_exports_sounds(tmp_path: Path):
    words = TrainArguments(
        [*SHORT, "policy.lora={rank = 2}"],
        "t2a",
        str(build_tiny("stable_audio3", tmp_path / "model")),
        "train.jsonl",
        ["band_energy", "onset_iou"],
    )
    run = train(words)
    line = json.loads(run.samples_file("train", 1).read_text().splitlines()[0])
    with wave.open(str(run.samples / line["sound"]["sound"])) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (16, 2, 16)
    assert set(line["scores"]) == {"band_energy", "onset_iou"} and line["image"] is None and line["video"] is None
    assert "data:audio/wav;base64," in run.report_file.read_text()
    facts = draw(run.path, "a hum", out=Path("hum.wav"))
    with wave.open("hum.wav") as file:
        assert facts["rate"] == file.getframerate() == 16 and facts["samples"] == file.getnframes() == 16
    with pytest.raises(ValueError, match=r"\.wav"):
        draw(run.path, "a hum", out=Path("hum.png"))
    folder = export(run.path, tmp_path / "out")
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: text-to-audio" in card and "1 s, " in card
    scope: dict[str, object] = {}
    exec(card.split("```python\n")[1].split("```")[0].replace("THIS_FOLDER", str(folder)), scope)
    assert any("lora_" in name for name, _ in scope["pipeline"].transformer.named_parameters())  # type: ignore[attr-defined]
