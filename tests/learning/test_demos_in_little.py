"""Every demo on its whole way, both parts a few steps long: its report, its samples, and what its export loads into.

That they learn is shown by `make evidence`.
"""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mmrl.app.config import run as configs
from mmrl.app.export.export import export
from mmrl.app.run.folder import RunDir
from mmrl.data.drawn import digit_text, gliding, shape_edits, shapes
from mmrl.data.drawn.sounds import tones
from mmrl.lab import demos

READER = [name for name in ("onnxruntime", "rapidocr_onnxruntime", "rapidfuzz", "matplotlib") if find_spec(name) is None]

DRAWN = {name: ['reward=[{use = "jpeg_size", scale = 0.1}]'] for name in ("t2i", "t2i-text")}
DRAWN["writer"] = ['reward.0.picture={use = "jpeg_size", scale = 0.1}', "reward.0.over=cut"]
"""What so little imitation draws earns nothing from the demo's own reward."""


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], RunDir]:
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    return lambda name: demos.run(name, tmp_path / "run", overrides=DRAWN.get(name, []), short=True)


def held_out(run: RunDir) -> list[dict[str, Any]]:
    """The samples of the last evaluation."""
    assert sum("eval/completion_length" in line or "eval/total" in line for line in run.read_metrics().lines) == 2
    file = sorted(run.samples.glob("eval*.jsonl"))[-1]
    return [json.loads(line) for line in file.read_text().splitlines()]


def pipeline_with_adapter(run: RunDir, folder: Path) -> Any:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    model = configs.load(str(run.config_file)).config.policy.model
    pipeline: Any = DiffusionPipeline.from_pretrained(model, text_encoder_3=None, tokenizer_3=None)
    pipeline.load_lora_weights(str(export(run.path, folder / "exported")))
    return pipeline


@pytest.mark.slow
def test_grounding(demo: Callable[[str], RunDir], tmp_path: Path):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    run = demo("grounding")
    assert held_out(run) and run.report_file.is_file()
    folder = export(run.path, tmp_path / "exported")
    assert AutoModelForImageTextToText.from_pretrained(folder).config.model_type == "qwen3_vl"
    assert AutoProcessor.from_pretrained(folder).image_processor is not None


@pytest.mark.slow
def test_a_model_that_looks_twice_and_its_twin(demo: Callable[[str], RunDir]):
    run = demo("look-twice")
    assert held_out(run) and "Your answer?" in run.report_file.read_text()
    twin = RunDir.open(demos.twin_of(run.path))
    assert all(len(line["turns"]) == 1 for line in held_out(twin))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "played"), [("video", "data:image/"), ("beeps", "data:audio/wav;base64,")])
def test_clips_are_shown_as_film_strips_and_sounds_beside_their_waveforms(name: str, played: str, demo: Callable[[str], RunDir]):
    run = demo(name)
    assert held_out(run)
    page = run.report_file.read_text()
    assert "R@0.7" in page and played in page and page.count("data:image/") >= 4


@pytest.mark.slow
def test_a_writer_and_what_its_painter_drew(demo: Callable[[str], RunDir]):
    run = demo("writer")
    samples, taught = held_out(run), configs.load(str(run.config_file)).table.values["reward"][0]["painter"]["model"]
    assert taught.startswith(str(run.path.parent)), "the painter is the demo's own, taught as shortly"
    assert all(" red" not in sample["text"] for sample in samples)
    assert all((run.samples / sample["image"]["file"]).is_file() for sample in samples)
    assert {"drawn/beside", "drawn/gain"} <= set(samples[0]["parts"])
    assert run.report_file.read_text().count("data:image/") >= 4


DRAWS = {
    "t2i": ({one.caption for one in shapes.HELD_OUT}, None, ""),
    "t2i-text": ({digit_text.caption(number) for number in digit_text.HELD_OUT}, None, ""),
    "t2v": ({one.caption for one in gliding.HELD_OUT}, ("video", "clip"), "data:video/mp4;base64,"),
    "edit": ({one.text for one in shape_edits.INSTRUCTIONS}, None, '<p class="label">source</p>'),
    "tones": ({one.caption for one in tones.HELD_OUT}, ("sound", "sound"), "data:audio/wav;base64,"),
}
"""Demo -> the prompts that it is judged on, where its samples name their files, and what its report holds."""
READS = [pytest.mark.real_weights, pytest.mark.skipif(bool(READER), reason=f"not installed: {READER}")]


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=READS if name == "t2i-text" else ()) for name in DRAWS])
def test_what_is_drawn(name: str, demo: Callable[[str], RunDir], tmp_path: Path):
    asked, media, shown = DRAWS[name]
    run = demo(name)
    samples = held_out(run)
    found = {sample["text"] for sample in samples}
    assert found <= asked if name == "edit" else found == asked
    assert media is None or all((run.samples / sample[media[0]][media[1]]).is_file() for sample in samples)
    assert shown in run.report_file.read_text()
    if name in ("t2i", "t2v", "edit"):
        assert "default_0" in pipeline_with_adapter(run, tmp_path).transformer.peft_config
