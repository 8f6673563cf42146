"""Sounds in samples files and on the page: a waveform, the sound itself, and true and written spans under it."""

import json
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from mmrl.answers.spans.interval import Interval
from mmrl.app.report.page import MOST_CLIP_BYTES, write_report
from mmrl.app.run.folder import RunDir
from mmrl.app.run.sample_files import WAVEFORM, digest, frames_of
from mmrl.app.run.trackers import JsonlTracker
from mmrl.core.samples import Audio
from mmrl.core.types import Group, Prompt, Sample, Scores
from mmrl.training.callbacks import Examples
from tests.support.sounds import tone, write_wav


def finished(folder: Path, sound: Audio, answer: object) -> RunDir:
    """A run with two evaluations of one prompt about the sound."""
    run = RunDir.create(folder)
    run.metrics_file.touch()
    scores = Scores(("temporal_iou",), torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.long), torch.ones(1))
    prompt = Prompt("p", "When does it ring?", (sound,), answer, {"duration": 4.0})
    for step, text in enumerate(("0.0 to 4.0", "2.0 to 3.0")):
        JsonlTracker(run, None).write(step, Examples([Group(0, prompt, (Sample(text),))], scores), "eval")
    return run


def test_a_waveform_is_high_where_the_sound_is_loud(tmp_path: Path):
    [drawn], kind = frames_of(write_wav(tmp_path / "a.wav", [tone(4.0, start=2.0)]))
    dark = (np.asarray(drawn).mean(2) < 200).sum(0)
    assert kind == "sound" and drawn.size == WAVEFORM and dark[:250].max() <= 2 and dark[260:].min() > WAVEFORM[1] - 8
    silent, _ = frames_of(write_wav(tmp_path / "b.wav", [np.zeros(16_000)]))
    assert (np.asarray(silent[0]).mean(2) < 200).sum(0).max() <= 2


@pytest.mark.parametrize("answer", [Interval(2, 3), "a bell"], ids=["a span", "words"])
def test_the_page_plays_the_sound_beside_its_waveform(tmp_path: Path, answer: object):
    run = finished(tmp_path / "run", write_wav(tmp_path / "a.wav", [tone(4.0, start=2.0)]), answer)
    page = write_report(run.path).read_text(encoding="utf-8")
    assert page.count('<audio src="data:audio/wav;base64,') == page.count("<audio ") >= 3 and "media-src data:" in page
    [stored] = (run.samples / "media").glob("*.wav")
    with wave.open(str(stored)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (16_000, 1, 64_000)
    bars = page.count('<i class="truth" style="left:50.000%;width:25.000%"'), page.count('style="left:0.000%;width:100.000%"')
    assert bars == ((3, 1) if isinstance(answer, Interval) else (0, 0))


def test_a_sound_too_large_for_the_page_stays_beside_the_samples(tmp_path: Path):
    run = finished(tmp_path / "run", write_wav(tmp_path / "a.wav", [tone(MOST_CLIP_BYTES / 32_000 + 1)]), "a bell")
    page = write_report(run.path).read_text(encoding="utf-8")
    assert "<audio " not in page and 'class="picture strip"' in page and len(list((run.samples / "media").glob("*.wav"))) == 1


def test_a_drawn_sound_is_kept_as_a_file_and_played(tmp_path: Path):
    run = RunDir.create(tmp_path / "run")
    run.metrics_file.touch()
    scores = Scores(("tempo",), torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.long), torch.ones(1))
    left, right = tone(0.5, 400.0), tone(0.5, 900.0)
    made = tuple(Sample(sound=np.stack(pair).astype(np.float32), rate=16_000) for pair in ((left, right), (right, right)))
    for step in (0, 1):
        JsonlTracker(run, None).write(step, Examples([Group(0, Prompt("p", "a hum"), made)], scores), "eval")
    files = sorted((run.samples / "media").glob("*.wav"))
    first = json.loads(run.samples_file("eval", 0).read_text(encoding="utf-8").splitlines()[0])["sound"]
    assert (first["kind"], first["width"], first["height"]) == ("sound", *WAVEFORM)
    with wave.open(str(run.samples / first["sound"])) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (16_000, 2, 8_000)
        back = np.frombuffer(file.readframes(8_000), "<i2").reshape(-1, 2).T / 32767
    np.testing.assert_allclose(back, made[0].sound, atol=0.51 / 32767)
    page = write_report(run.path).read_text(encoding="utf-8")
    assert len(files) == 2 and page.count('<audio src="data:audio/wav;base64,') >= 2
    louder = Sample(sound=made[0].sound * np.float32(1 + 1e-6), rate=16_000)
    assert digest(made[0]) == digest(Sample(sound=made[0].sound.copy(), rate=16_000)) != digest(louder)
