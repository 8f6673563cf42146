"""The reward `in_sync`: sounds set in and pictures change at times that are known."""

from dataclasses import replace

import numpy as np
import pytest

from mmrl.app.plugins.resolve import load
from mmrl.core.types import Group, Prompt, Sample

RATE, FPS, FRAMES = 1000, 20.0, 20
"""A second of either."""


def made(seen: int | None, heard: float | None) -> Sample:
    """A black clip that is white from a frame on, with noise from a time on over a hum; None: never."""
    clip = np.zeros((FRAMES, 8, 8, 3), np.uint8)
    wave = 0.01 * np.sin(np.arange(RATE))
    if seen is not None:
        clip[seen:] = 255
    if heard is not None:
        wave[round(heard * RATE) :] += np.where(np.arange(RATE - round(heard * RATE)) % 2, 0.5, -0.5)
    return Sample(video=clip, fps=FPS, sound=np.stack([wave, wave]).astype(np.float32), rate=RATE)


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
    quiet = Sample(video=silent.video, fps=FPS, sound=np.zeros((1, RATE), np.float32), rate=RATE)
    assert [one.value for one in score(still, quiet)] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "said"), [({"sound": None}, "has no sound"), ({"video": None}, "has no video"), ({"fps": None}, "it needs a time")]
)
def test_samples_without_both_are_refused(change: dict[str, None], said: str):
    with pytest.raises(ValueError, match=said):
        score(replace(made(10, 0.5), **change))
