"""Sounds of real files: their samples at a model's rate, their parts, and one sentence for each file that has none."""

import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mmrl import load_data
from mmrl.answers.spans.sounds import Ear, check_sound, read_wave, sound_part
from mmrl.app.commands.data import check as check_rows
from mmrl.core.samples import AUDIO, Audio, Prompt, kind_of
from mmrl.data.validate import check as check_prompts
from tests.support.refused import refused
from tests.support.sounds import tone, write_clip_with_sound, write_floats, write_wav

EAR = Ear(16_000, 30.0)


def peak_hz(samples: np.ndarray, rate: int = 16_000) -> float:
    return float(np.abs(np.fft.rfft(samples)).argmax()) * rate / len(samples)


@pytest.mark.parametrize(("rate", "channels"), [(8_000, 1), (44_100, 2), (96_000, 2), (48_000, 8)])
def test_every_rate_and_number_of_channels_becomes_the_mean_at_the_models_rate(tmp_path: Path, rate: int, channels: int):
    """One channel sounds and the others are silent, so the mean is a share of it; FFmpeg's own mix would be louder."""
    sound = write_wav(tmp_path / "a.wav", [tone(1.5, 440, rate), *([np.zeros(round(1.5 * rate))] * (channels - 1))], rate)
    heard = read_wave(sound, EAR)
    assert heard.dtype == np.float32 and abs(len(heard) - 24_000) <= 16 and sound_part(sound) == (0.0, pytest.approx(1.5))
    assert peak_hz(heard) == pytest.approx(440, abs=1)
    assert np.abs(heard[4_000:-4_000]).max() == pytest.approx(0.5 / channels, abs=0.01)


def test_samples_at_the_models_own_rate_are_those_of_the_file(tmp_path: Path):
    samples = tone(0.5)
    assert np.abs(read_wave(write_wav(tmp_path / "a.wav", [samples]), EAR) - samples).max() < 1e-4


def test_a_part_begins_and_ends_where_it_says(tmp_path: Path):
    """The tone begins at 1.2 s; parts far inside a long file are looked for, and found at the same place."""
    sound = write_wav(tmp_path / "a.wav", [tone(2.0, start=1.2)])
    heard = read_wave(replace(sound, start=1.0, end=1.5), EAR)
    assert len(heard) == 8_000 and np.abs(heard).argmax() > 3_200 and np.abs(heard[:3_199]).max() < 1e-3 < np.abs(heard[3_210])
    long = write_wav(tmp_path / "b.wav", [tone(50.0, start=41.2)])
    assert np.abs(read_wave(replace(long, start=41.0, end=41.5), EAR) - heard).max() < 0.02


def test_the_sound_of_a_clip_is_heard(tmp_path: Path):
    sound = write_clip_with_sound(tmp_path / "a.mp4", tone(2.0, 700))
    heard = read_wave(sound, EAR)
    assert len(heard) / 16_000 == pytest.approx(2.0, abs=0.15) and peak_hz(heard) == pytest.approx(700, abs=5)
    assert kind_of(sound) is AUDIO and kind_of("a.flac") is AUDIO and kind_of("a.mp4") is not AUDIO


def head(size: int, form: int, rate: int, width: int) -> bytes:
    """The first 44 bytes of a .wav file of one channel: form 1, whole numbers of `width` bytes; 3, floats."""
    fields = (16, form, 1, rate, rate * width, width, 8 * width, b"data", size)
    return struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVE", b"fmt ", *fields)


def write_clip(file: Path, samples: np.ndarray | None, end: int | None = None) -> None:
    whole = write_clip_with_sound(file.with_suffix(".mp4"), samples)
    file.write_bytes(Path(whole.source).read_bytes()[:end])


NAN = np.full(1_600, np.nan, "<f4").tobytes()
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "nowhere": (lambda file: None, "there is no sound '.*nowhere.wav'"),
    "empty": (Path.touch, "is an empty file"),
    "text": (lambda file: file.write_text("not a sound at all"), "cannot be opened: .*is it cut short, or no sound"),
    "silent": (lambda file: write_clip(file, None), "holds no sound, only video"),
    "short": (lambda file: write_wav(file, [np.zeros(0)]), "lasts 0 seconds|cannot be opened"),
    "cut": (lambda file: write_clip(file, tone(2.0), -4_000), "cannot be opened|is cut short|is damaged"),
    "slow": (lambda file: write_wav(file, [tone(0.1)], rate=7), "has 7 samples a second, which no recording has"),
    "nan": (lambda file: file.write_bytes(head(len(NAN), 3, 16_000, 4) + NAN), "holds samples that are no finite numbers"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path: Path, name: str):
    write, said = BROKEN[name]
    write(file := tmp_path / f"{name}.wav")
    error = refused(said, read_wave, Audio(str(file)), EAR, error=(ValueError, FileNotFoundError))
    assert name in str(error.value) and "\n" not in str(error.value)


def test_a_wave_file_that_ends_early_is_refused(tmp_path: Path):
    sound = write_wav(tmp_path / "a.wav", [tone(5.0)])
    file = Path(sound.source)
    file.write_bytes(file.read_bytes()[:40_000])
    refused(r"is cut short: it promises 160044 bytes and holds 40000", read_wave, sound, EAR)


def test_hours_of_sound_are_refused_unless_a_part_is_named_and_never_held(tmp_path: Path):
    """Ten hours at a low rate: a file of 72 MB, of which a second is heard."""
    file = tmp_path / "hours.wav"
    size = 10 * 3600 * 2_000
    with file.open("wb") as out:
        out.write(head(size, 1, 2_000, 1))
        out.truncate(44 + size)
    with pytest.raises(ValueError, match=r"lasts 36000.0 s, and the model hears 30 s: name a part of it by `start` and `end`"):
        read_wave(Audio(str(file)), EAR)
    tracemalloc.start()
    heard = read_wave(Audio(str(file), 35_000.0, 35_001.0), EAR)
    assert len(heard) == pytest.approx(16_000, abs=16) and tracemalloc.get_traced_memory()[1] < 2e6
    tracemalloc.stop()


@pytest.mark.parametrize(("start", "end"), [(-1.0, None), (2.5, None), (1.0, 0.5), (None, 9.0)])
def test_a_part_that_a_file_does_not_have_is_refused(tmp_path: Path, start: float | None, end: float | None):
    sound = write_wav(tmp_path / "a.wav", [tone(2.0)])
    with pytest.raises(ValueError, match=r"it asks for .* s to .* s, and the file lasts from 0 to 2.00 s"):
        read_wave(replace(sound, start=start, end=end), EAR)


@pytest.mark.parametrize(
    ("sample", "said"), [(np.nan, "no finite"), (np.inf, "no finite"), (-np.inf, "no finite"), (1e30, "full")]
)
def test_samples_that_no_model_can_be_given_are_found_before_training(tmp_path: Path, sample: float, said: str):
    """By a look at a file of floats, by loading a data set and by its check."""
    sound = write_floats(tmp_path / "odd.wav", np.append(tone(1.0), sample))
    (tmp_path / "rows.jsonl").write_text('{"audio": "odd.wav", "question": "how often?", "answer": 2}\n')
    looks = (
        lambda: check_sound(sound),
        lambda: load_data("qa_jsonl", path=str(tmp_path / "rows.jsonl")),
        lambda: check_rows(str(tmp_path / "rows.jsonl"), []),
        lambda: check_prompts([Prompt("p", "how often?", (sound,))]).raise_if_bad(),
    )
    for look in looks:
        refused(rf"odd\.wav' (holds|has) samples .*{said}", look)


def test_sounds_that_pass_are_measured(tmp_path: Path):
    whole = write_wav(tmp_path / "a.wav", [tone(2.0)])
    assert check_sound(whole) == check_sound(whole, decode=True) == pytest.approx(2.0)
    part = Audio(write_floats(tmp_path / "b.wav", np.append(tone(2.0), np.nan)).source, end=1.0)
    assert check_sound(part) == 1.0
