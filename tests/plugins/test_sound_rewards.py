"""Rewards of sounds, alone and beside clips, against sounds whose truth is known."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mmrl import Group, Interval, Prompt, Sample
from mmrl.app.plugins.resolve import load
from mmrl.core.samples import Scored
from tests.plugins.conftest import ROOT
from tests.support.sounds import tone

RATE = 8_000


def drawn(*waves: np.ndarray, rate: int = RATE, answer: object = None, **columns: object) -> Group:
    """A group of sounds; a wave of one channel is one."""
    sounds = (Sample(sound=np.atleast_2d(wave).astype(np.float32), rate=rate) for wave in waves)
    return Group(0, Prompt("p", "a sound", answer=answer, columns=columns), tuple(sounds))


def reward(name: str, **settings: object):
    return load(str(ROOT / "rewards" / f"{name}.py"), "rewards")(**settings)


def scores(name: str, group: Group, **settings: object) -> list[float]:
    found: list[Any] = reward(name, **settings)(group)
    values: list[Any] = [one.value if isinstance(one, Scored) else one for one in found]
    return values


def clicks(bpm: float, seconds: float = 4.0, first: float = 0.13) -> np.ndarray:
    """Bursts of 20 ms at a tempo."""
    wave, noise = np.zeros(round(seconds * RATE)), np.random.default_rng(0)
    for beat in np.arange(first, seconds - 0.03, 60 / bpm):
        place = round(beat * RATE)
        wave[place : place + 160] = 0.5 * noise.uniform(-1, 1, 160)
    return wave


def test_band_energy_is_that_of_a_slow_sum_over_all_frequencies():
    for size in (63, 64):
        wave = np.random.default_rng(size).uniform(-0.5, 0.5, (2, size)).astype(np.float32)
        mean, inside, whole = wave.mean(0), 0.0, 0.0
        for k in range(size):
            term = sum(float(x) * np.exp(-2j * math.pi * k * i / size) for i, x in enumerate(mean))
            frequency = min(k, size - k) * RATE / size
            whole += abs(term) ** 2
            inside += abs(term) ** 2 * (500 <= frequency < 1500)
        assert scores("band_energy", drawn(wave, band=[500, 1500])) == pytest.approx([inside / whole], rel=1e-5)
        assert sum(
            scores("band_energy", drawn(wave), low=low, high=high)[0] for low, high in ((0, 500), (500, 1500), (1500, 4001))
        ) == pytest.approx(1)


def test_a_tone_lies_in_its_band_alone_and_silence_in_none():
    low, high = tone(1.0, 200.0, RATE), tone(1.0, 1200.0, RATE)
    group = drawn(low, high, low + high, low + 0.5, np.zeros(RATE), 1e-5 * low, band=(150, 250))
    found = scores("band_energy", group)
    # an offset of .5 has twice the energy of a sine of amplitude .5
    assert found == pytest.approx([1.0, 0.0, 0.5, 1 / 3, 0.0, 0.0], abs=1e-3)


def test_onset_iou_is_the_overlap_of_loud_time_with_the_span():
    ringing = tone(1.0, 400.0, RATE, start=0.5)
    half = np.where(np.arange(RATE) < 0.75 * RATE, ringing, 0)
    twice = np.where(np.arange(RATE) < 0.25 * RATE, tone(1.0, 400.0, RATE), 0) + np.where(
        np.arange(RATE) >= 0.75 * RATE, ringing, 0
    )
    group = drawn(ringing, half, twice, np.zeros(RATE), tone(1.0, 400.0, RATE), span=[0.5, 1.0])
    assert scores("onset_iou", group) == pytest.approx([1.0, 0.5, 1 / 3, 0.0, 0.5], abs=0.03)
    assert scores("onset_iou", drawn(ringing, answer=Interval(0.0, 0.5)))[0] < 0.02
    one = reward("onset_iou")(drawn(half, span=[0.5, 0.75]))[0]
    assert one.parts == pytest.approx({"start": 0.5, "end": 0.75})
    assert scores("onset_iou", drawn(ringing, span=[0.505, 1.0])) == pytest.approx([0.99], abs=1e-6)


@pytest.mark.parametrize("bpm", [45.0, 90.0, 120.0, 173.0])
def test_tempo_is_that_of_clicks_and_an_octave_away_earns_nothing(bpm: float):
    [found] = reward("tempo", bpm=bpm)(drawn(clicks(bpm)))
    assert found.parts["bpm"] == pytest.approx(bpm, rel=0.02) and found.value > 0.94
    assert scores("tempo", drawn(clicks(bpm), bpm=bpm / 2 if bpm > 60 else 2 * bpm)) == [0.0]
    third = 2 ** (1 / 4)
    assert scores("tempo", drawn(clicks(bpm), bpm=bpm * third)) == pytest.approx([0.5], abs=0.06)


def test_what_does_not_beat_has_no_tempo():
    noise = 0.3 * np.random.default_rng(1).uniform(-1, 1, 4 * RATE)
    found = reward("tempo", bpm=100.0)(drawn(np.zeros(4 * RATE), tone(4.0, 300.0, RATE), clicks(100.0, first=3.9), noise))
    assert [one.value for one in found[:3]] == [0.0, 0.0, 0.0] and found[0].parts == {}


@pytest.mark.parametrize(
    ("name", "settings", "group", "said"),
    [
        ("band_energy", {}, drawn(np.ones(9)), "prompt 'p' has no column 'band': give it .low, high. in Hz"),
        ("band_energy", {}, drawn(np.ones(9), band=[300]), "the column band of prompt 'p' is '.300.'"),
        ("band_energy", {}, drawn(np.ones(9), band=[300, 200]), "300 to 200: give it .low, high. in Hz, the smaller first"),
        ("band_energy", {}, drawn(np.ones(9), band=[True, 200]), "the column band"),
        ("band_energy", {"low": 5000, "high": 6000}, drawn(np.ones(9)), "begins at 5000 Hz, and sounds of 8000 samples a second"),
        ("onset_iou", {}, drawn(np.ones(RATE)), "prompt 'p' has no column 'span'"),
        ("onset_iou", {}, drawn(np.ones(RATE), span=[0.5, 2.0]), "until 2 s, and those drawn last 1 s: raise policy.seconds"),
        ("tempo", {}, drawn(np.ones(RATE)), "the column bpm of prompt 'p' is None"),
        ("tempo", {}, drawn(np.ones(RATE), bpm=500), "is 500, and tempos of 30 to 240 are told apart"),
        ("tempo", {"bpm": 60.0}, drawn(np.ones(RATE)), "last 1 s, less than two beats: raise policy.seconds"),
        *(
            (name, {}, Group(0, Prompt("p", "x", columns={"band": [1, 2], "span": [0, 1], "bpm": 60}), (sample,)), said)
            for name in ("band_energy", "onset_iou", "tempo")
            for sample, said in (
                (Sample("a text"), "has no sound: this reward is for policies that make sounds"),
                (Sample(sound=np.full((1, 9), np.nan, np.float32), rate=RATE), "samples that are no finite numbers"),
            )
        ),
    ],
)
def test_what_cannot_be_heard_so_is_refused(name: str, settings: dict[str, float], group: Group, said: str):
    with pytest.raises(ValueError, match=said):
        reward(name, **settings)(group)


@pytest.mark.parametrize("settings", [{"low": 5.0}, {"low": 9.0, "high": 5.0}])
def test_half_a_band_is_refused(settings: dict[str, float]):
    with pytest.raises(ValueError, match="set both, low below high, or neither"):
        reward("band_energy", **settings)


SYNC_RATE, FPS, FRAMES = 1000, 20.0, 20
"""A second of either."""


def made(seen: int | None, heard: float | None) -> Sample:
    """A black clip that is white from a frame on, with noise from a time on over a hum; None: never."""
    clip = np.zeros((FRAMES, 8, 8, 3), np.uint8)
    wave = 0.01 * np.sin(np.arange(SYNC_RATE))
    if seen is not None:
        clip[seen:] = 255
    if heard is not None:
        wave[round(heard * SYNC_RATE) :] += np.where(np.arange(SYNC_RATE - round(heard * SYNC_RATE)) % 2, 0.5, -0.5)
    return Sample(video=clip, fps=FPS, sound=np.stack([wave, wave]).astype(np.float32), rate=SYNC_RATE)


def score(*samples: Sample, **settings: float) -> list:
    return load("in_sync", "rewards")(**settings)(Group(0, Prompt("p", "a clap"), samples))


@pytest.mark.parametrize(
    ("seen", "heard", "limit", "worth"), [(10, 0.5, 0.5, 1.0), (10, 0.7, 0.5, 0.6), (4, 0.4, 0.4, 0.5), (2, 0.9, 0.5, 0.0)]
)
def test_it_falls_with_the_seconds_between(seen: int, heard: float, limit: float, worth: float):
    (found,) = score(made(seen, heard), limit=limit)
    assert found.value == pytest.approx(worth, abs=1e-6)
    assert found.parts["seen"] == pytest.approx(seen / FPS) and found.parts["heard"] == pytest.approx(heard)


def test_still_and_silent_clips_earn_nothing():
    still, silent = made(None, 0.5), made(10, None)
    quiet = Sample(video=silent.video, fps=FPS, sound=np.zeros((1, SYNC_RATE), np.float32), rate=SYNC_RATE)
    assert [one.value for one in score(still, quiet)] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "said"), [({"sound": None}, "has no sound"), ({"video": None}, "has no video"), ({"fps": None}, "it needs a time")]
)
def test_samples_without_both_are_refused(change: dict[str, None], said: str):
    with pytest.raises(ValueError, match=said):
        score(replace(made(10, 0.5), **change))
