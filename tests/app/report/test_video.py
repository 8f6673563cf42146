"""Film strips of clips with the true and the predicted span under them, and figures of spans."""

import json
import math
import re
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.answers.spans.interval import Interval
from mmrl.app.report.data import changes, load
from mmrl.app.report.page import MOST_CLIP_BYTES, MOST_PROMPTS, MOST_STEPS, evenly, thumbnail, write_report
from mmrl.app.report.rows import SampleLine
from mmrl.app.run.folder import RunDir
from mmrl.app.run.sample_files import CLIP_FRAMES, WAVEFORM, answer_spans, digest, frames_of
from mmrl.app.run.trackers import JsonlTracker
from mmrl.core.samples import Audio, ClipTime
from mmrl.core.types import Group, Prompt, Sample, Scores, Video
from mmrl.data.files.mp4 import write_mp4
from mmrl.training.callbacks import Examples
from tests.support.runs import write_run
from tests.support.sounds import tone, write_wav

CLIP = (ClipTime(8.0, 10.0, 16),)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight seconds whose frames grow brighter: 3 grey values per frame."""
    frames = np.stack([np.full((32, 48, 3), 3 * i, np.uint8) for i in range(80)])
    return str(write_mp4(tmp_path_factory.mktemp("clip") / "clip.mp4", frames, fps=10))


def prompt(clip: str, answer: object = Interval(2, 4)) -> Prompt:
    return Prompt("p", "When is it?", (Video(clip),), answer)


def finished(path: Path, clip: str, *texts: str) -> RunDir:
    """A run whose evaluations wrote these texts."""
    run = RunDir.create(path)
    run.metrics_file.touch()
    scores = Scores(("temporal_iou",), torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.long), torch.ones(1))
    for step, text in enumerate(texts):
        JsonlTracker(run, None).write(step, Examples([Group(0, prompt(clip), (Sample(text=text, clips=CLIP),))], scores), "eval")
    return run


def test_a_clip_becomes_the_middles_of_equal_parts(clip: str) -> None:
    frames, kind = frames_of(Video(clip))
    assert kind == "video" and len(frames) == CLIP_FRAMES == 8
    # part k of 8 seconds has its middle at k + 0.5 seconds, which is frame 10 k + 5, give or take one
    assert [float(np.asarray(frame).mean()) for frame in frames] == pytest.approx([3 * (10 * k + 5) for k in range(8)], abs=4)
    later = frames_of(Video(clip, start=4.0, end=8.0))[0]
    assert float(np.asarray(later[0]).mean()) == pytest.approx(3 * 42.5, abs=4)


def test_spans_are_drawn_in_percent_of_the_clip(tmp_path: Path, clip: str) -> None:
    run = finished(tmp_path / "run", clip, "1.0 to 7.0", "2.0 to 5.0")
    page = write_report(run.path).read_text(encoding="utf-8")
    # 2 to 4 of 8 seconds; 1 to 7; 2 to 5. The pair shows both, best or worst of the last evaluation one of them again
    assert page.count('<i class="truth" style="left:25.000%;width:25.000%"') == 3
    assert page.count('<i class="predicted" style="left:12.500%;width:75.000%"') == 1
    assert page.count('<i class="predicted" style="left:25.000%;width:37.500%"') == 2
    assert "true span" in page and "Answer:" not in page
    figures = {change.name: change for change in changes(load(run.path))}
    assert (figures["Mean IoU"].before, figures["Mean IoU"].after) == pytest.approx((2 / 6, 2 / 3))
    assert [figures[f"R@{least}"].after for least in (0.3, 0.5, 0.7)] == [1.0, 1.0, 0.0]
    assert "Hits" not in figures and "Acc@0.5" not in figures


def test_text_without_a_span_counts_0_and_is_named(tmp_path: Path, clip: str) -> None:
    run = finished(tmp_path / "run", clip, "never", "2.0 to 4.0")
    page = write_report(run.path).read_text(encoding="utf-8")
    assert {change.name: change for change in changes(load(run.path))}["Mean IoU"].before == 0.0
    assert page.count('<div class="film"') == 3


def test_other_answers_have_no_spans(clip: str) -> None:
    sample = Sample(text="A", clips=CLIP)
    assert answer_spans(prompt(clip, "A,C"), sample) is None and answer_spans(prompt(clip, None), sample) is None
    assert answer_spans(prompt(clip), Sample(text="1 to 2")) is None
    assert answer_spans(prompt(clip, (Interval(1, 2), Interval(3, 4))), Sample(text="0 to 3", clips=CLIP)) == {
        "seconds": 8.0,
        "truth": [[1.0, 2.0], [3.0, 4.0]],
        "predicted": [[0.0, 3.0]],
    }
    old = SampleLine({"completion": "1 to 2", "answer_boxes": [], "media": [], "media_sizes": []}, None)
    assert old.spans is None and math.isnan(old.iou)


def labels(run: RunDir) -> list[list[str]]:
    """The labels of every strip."""
    found = re.findall(r'<div class="over-steps">(.*?)</article>', write_report(run.path).read_text(), re.DOTALL)
    return [re.findall(r'<p class="label">(step \d+|source)', strip) for strip in found]


def copy_samples(run: RunDir, split: str, steps: list[int]) -> None:
    """Evaluations at more steps, as the first one was."""
    text = run.samples_file("eval", run.sample_steps("eval")[0]).read_text()
    for step in steps:
        run.samples_file(split, step).write_text(text.replace('"step": 0', f'"step": {step}').replace('"eval"', f'"{split}"'))


def test_steps_are_even_with_the_first_and_the_last():
    assert evenly([0, 10, 20], 8) == [0, 10, 20] and evenly([], 8) == [] and evenly([5], 8) == [5]
    assert evenly(list(range(0, 101)), 5) == [0, 25, 50, 75, 100]
    assert len(evenly(list(range(1000)), MOST_STEPS)) == MOST_STEPS


def test_held_out_prompts_stand_side_by_side_over_the_steps(tmp_path: Path):
    run = write_run(tmp_path / "run", steps=4, num_prompts=9)
    for step in run.sample_steps("eval")[1:]:
        run.samples_file("eval", step).unlink()
    copy_samples(run, "eval", [2])
    assert labels(run) == [], "two evaluations are shown as pairs"
    copy_samples(run, "eval", [4, 6])
    assert labels(run) == [["step 0", "step 2", "step 4", "step 6"]] * MOST_PROMPTS
    page = run.report_file.read_text()
    assert "<h3>Held out</h3>" in page and "<h3>Seen</h3>" not in page
    copy_samples(run, "seen", [0])
    assert labels(run)[MOST_PROMPTS:] == [["step 0"]] * MOST_PROMPTS
    assert "<h3>Seen</h3>" in run.report_file.read_text()


def test_pictures_of_a_strip_are_small_and_lie_in_the_page(tmp_path: Path):
    large, small, broken = (tmp_path / name for name in ("large.jpg", "small.png", "broken.jpg"))
    Image.effect_noise((1024, 700), 90).convert("RGB").save(large, quality=95)
    Image.new("RGB", (16, 16)).save(small)
    broken.write_bytes(b"x" * 20_000)
    assert thumbnail(large).startswith("data:image/jpeg;base64,") and len(thumbnail(large)) < 200_000 < large.stat().st_size
    assert thumbnail(small).startswith("data:image/png;base64,")
    assert thumbnail(broken) == thumbnail(tmp_path / "gone.png") == thumbnail(tmp_path / "clip.mp4") == ""


def finished_with_sound(folder: Path, sound: Audio, answer: object) -> RunDir:
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
    run = finished_with_sound(tmp_path / "run", write_wav(tmp_path / "a.wav", [tone(4.0, start=2.0)]), answer)
    page = write_report(run.path).read_text(encoding="utf-8")
    assert page.count('<audio src="data:audio/wav;base64,') == page.count("<audio ") >= 3 and "media-src data:" in page
    [stored] = (run.samples / "media").glob("*.wav")
    with wave.open(str(stored)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (16_000, 1, 64_000)
    bars = page.count('<i class="truth" style="left:50.000%;width:25.000%"'), page.count('style="left:0.000%;width:100.000%"')
    assert bars == ((3, 1) if isinstance(answer, Interval) else (0, 0))


def test_a_sound_too_large_for_the_page_stays_beside_the_samples(tmp_path: Path):
    run = finished_with_sound(tmp_path / "run", write_wav(tmp_path / "a.wav", [tone(MOST_CLIP_BYTES / 32_000 + 1)]), "a bell")
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
