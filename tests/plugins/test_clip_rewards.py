"""Rewards of clips and of sounds whose truth is known; in this process and behind a real server."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from mmrl import Interval
from mmrl.core.types import Group, Prompt, Sample, Scored
from mmrl.data.drawn.gliding import GLIDES, HELD_OUT, TRAIN, Glide, Glides, draw
from mmrl.data.drawn.shapes import to_bytes
from mmrl.serving.media import change_of, clip_of
from mmrl.serving.reward_client import RemoteReward
from mmrl.serving.reward_server import Served, serving
from tests.plugins.conftest import shipped, values
from tests.support.refused import refused
from tests.support.sounds import tone

GLIDE = Glide("red", "square", "left")


def clip(glide: Glide = GLIDE, frames: int = 5, side: int = 32, **more: Any) -> np.ndarray:
    return to_bytes(draw(glide, side, frames, **more))


def group_of(*clips: Any, glide: Glide = GLIDE, **fields: Any) -> Group:
    prompt = Prompt("p1", glide.caption, columns=glide._asdict())
    return Group(0, prompt, tuple(Sample(video=one, **fields) for one in clips))


def test_a_clip_that_begins_with_its_picture_and_moves_scores_most(reward):
    """Beside it one that begins four pixels off, one of another colour, and a still one."""
    own, shifted, other = clip(), np.roll(clip(), 4, 2), clip(GLIDE._replace(colour="blue"))
    still = np.repeat(own[:1], 5, 0)
    prompt = Prompt("p1", "it moves left", (Image.fromarray(own[0]),))
    found = reward("first_frame")(Group(0, prompt, tuple(Sample(video=one) for one in (own, shifted, other, still))))
    right, moved, wrong, idle = values(found)
    assert right == 1.0 and idle == 0.0 and 0 < wrong < moved < 1
    assert found[0].parts["difference"] == 0 and found[3].parts["change"] == 0
    expected = np.abs(shifted[0].astype(float) - own[0]).mean() / 255
    assert moved == pytest.approx(1 - expected / 0.25)
    refused(r"prompt 'p2' has no picture", reward("first_frame"), Group(0, Prompt("p2", "x"), (Sample(video=own),)))


@pytest.mark.parametrize("glide", GLIDES[::7], ids=lambda glide: glide.caption)
def test_an_ideal_glide_scores_near_one(reward, glide):
    (found,) = reward("gliding_shapes")(group_of(clip(glide), glide=glide))
    assert found.value > 0.93 and min(found.parts.values()) > 0.85
    rest = [value for name, value in found.parts.items() if name != "way"]
    assert found.value == pytest.approx(found.parts["way"] * np.mean(rest))


def test_a_still_a_blank_and_a_backward_clip_score_zero(reward):
    still, blank = np.repeat(clip()[2:3], 5, 0), np.full((5, 32, 32, 3), 235, np.uint8)
    once_empty = clip().copy()
    once_empty[3] = 235
    clips = (still, blank, clip()[::-1].copy(), once_empty, clip(GLIDE._replace(way="up")), clip(frames=1))
    assert values(reward("gliding_shapes")(group_of(*clips))) == [0.0] * 6


@pytest.mark.parametrize(
    ("part", "made"),
    [
        ("colour", clip(GLIDE._replace(colour="blue"))),
        ("shape", clip(GLIDE._replace(shape="triangle"))),
        ("smooth", clip()[[0, 3, 1, 2, 4]]),
    ],
)
def test_one_fault_costs_its_part_alone(reward, part, made):
    right, wrong = reward("gliding_shapes")(group_of(clip(), made))
    assert wrong.parts[part] < right.parts[part] - 0.3
    others = {name for name in right.parts if name != part}
    assert all(wrong.parts[name] == pytest.approx(right.parts[name], abs=0.1) for name in others)


def test_flicker_costs_half(reward):
    rng = np.random.default_rng(0)
    flickering = [clip(glide, rng=rng, flickering=True) for glide in GLIDES]
    found = [reward("gliding_shapes")(group_of(one, glide=glide))[0].value for one, glide in zip(flickering, GLIDES, strict=True)]
    assert 0.35 < np.mean(found) < 0.65


def test_held_out_glides_are_balanced_and_never_taught(dataset):
    assert len(HELD_OUT) == 12 and len(TRAIN) == 36 and not set(HELD_OUT) & set(TRAIN)
    for place in range(3):
        counts = [sum(glide[place] == word for glide in HELD_OUT) for word in {glide[place] for glide in HELD_OUT}]
        assert len(set(counts)) == 1
    prompts = dataset("gliding_shapes")("held_out")
    assert {prompt.text for prompt in prompts} == {glide.caption for glide in HELD_OUT}
    refused("choose one of train, held_out", dataset("gliding_shapes"), "test")
    clips, captions = Glides().batch(np.random.default_rng(0), 40)
    assert clips.shape == (40, 5, 32, 32, 3) and not {glide.caption for glide in HELD_OUT} & set(captions)
    refused("flickers by chance", draw, GLIDE, 32, 5, flickering=True)


@pytest.mark.parametrize(("side", "frames"), [(32, 5), (64, 9)])
def test_smooth_motion_wants_movement_without_jumps_and_flicker(reward, side, frames):
    pytest.importorskip("cv2")
    rng = np.random.default_rng(0)
    right = clip(frames=frames, side=side)
    still = np.repeat(right[4:5], frames, 0)
    grainy = (still.astype(int) + rng.integers(-3, 4, still.shape)).clip(0, 255).astype(np.uint8)
    shuffled = right[rng.permutation(frames)]
    noise = rng.integers(0, 256, right.shape).astype(np.uint8)
    flickering = clip(frames=frames, side=side, rng=rng, flickering=True)
    found = reward("smooth_motion")(group_of(right, still, grainy, shuffled, noise, flickering))
    good, *bad = values(found)
    assert good > 0.85 and bad[0] == 0 and max(bad) < 0.5
    assert found[0].parts["change"] > found[1].parts["change"] == 0
    refused(r"has 2 frames: evenness needs 3, so raise policy\.frames", reward("smooth_motion"), group_of(right[:2]))


@dataclass(frozen=True)
class Brightness:
    """The mean of a picture; None where it is black."""

    def __call__(self, group: Group) -> list[float | Scored | None]:
        means = [float(np.asarray(sample.image).mean()) / 255 for sample in group.samples]
        return [None if mean == 0 else Scored(mean, {"dark": 1 - mean}) for mean in means]


def levels(*brightness: int) -> np.ndarray:
    return np.stack([np.full((4, 4, 3), level, np.uint8) for level in brightness])


@pytest.mark.parametrize(("over", "expected"), [("mean", 0.4), ("min", 0.2), ("first", 0.2)])
def test_a_picture_reward_over_frames(reward, over, expected):
    # 51, 102, 153 of 255 are 0.2, 0.4, 0.6
    (found,) = reward("over_frames", picture=Brightness(), over=over, frames=3)(group_of(levels(51, 102, 153)))
    assert found.value == pytest.approx(expected) and found.parts["dark"] == pytest.approx(1 - (0.4 if over != "first" else 0.2))
    assert found.parts["change"] == pytest.approx(0.2)


def test_frames_are_spread_from_first_to_last_and_a_still_clip_never_wins_its_group(reward):
    still, dark, middle = levels(250, 250, 250), levels(50, 60, 70), levels(90, 100, 110)
    found = reward("over_frames", picture=Brightness(), frames=3)(group_of(still, dark, middle))
    assert found[0].value == found[1].value == pytest.approx(60 / 255) and found[2].value == pytest.approx(100 / 255)
    off = reward("over_frames", picture=Brightness(), frames=3, least_change=0.0)(group_of(still, dark, middle))
    assert off[0].value == pytest.approx(250 / 255)
    (found,) = reward("over_frames", picture=Brightness(), frames=3)(group_of(levels(51, 9, 9, 102, 9, 9, 153)))
    assert found.value == pytest.approx(0.4)


def test_a_frame_without_a_score_leaves_the_clip_without_one(reward):
    assert reward("over_frames", picture=Brightness(), frames=2)(group_of(levels(0, 51)))[0] is None
    refused(r"set picture\.use", reward("over_frames"), group_of(levels(0, 51)))
    with pytest.raises(ValueError, match="has no video: this reward is for policies that make videos"):
        reward("over_frames", picture=Brightness())(Group(0, Prompt("p"), (Sample(image=Image.new("RGB", (4, 4))),)))


@pytest.mark.real_weights
def test_text_in_a_clip_is_read_frame_by_frame(reward):
    pytest.importorskip("rapidocr")
    pages = []
    for shift in range(4):
        page = Image.new("RGB", (320, 96), "white")
        ImageDraw.Draw(page).text((20 + 4 * shift, 20), "OPEN", "black", ImageFont.load_default(48))
        pages.append(np.asarray(page))
    prompt = Prompt("sign", 'a sign that says "OPEN"', columns={"target": "OPEN"})
    right, blank = np.stack(pages), np.stack([np.full((96, 320, 3), 200 + 9 * i, np.uint8) for i in range(4)])
    found = reward("over_frames", picture=reward("ocr"), frames=4)(Group(0, prompt, (Sample(video=right), Sample(video=blank))))
    assert values(found) == [1.0, 0.0]


def test_the_change_of_a_clip_and_its_bytes():
    assert change_of(levels(0, 51, 0)) == pytest.approx(0.2) and change_of(levels(9)) == 0.0
    pictures = [Image.fromarray(frame) for frame in clip()]
    np.testing.assert_array_equal(clip_of(Sample(video=pictures), "p"), clip())
    refused("neither pictures nor bytes", clip_of, Sample(video=clip() / 255), "p")


JUDGE = '''
"""VideoAlign's interface on its own files: the brightness of the first frame, its change, and the length of the text."""
import av
import numpy as np
CALLS = []

class VideoVLMRewardInference:
    def __init__(self, load_from_pretrained, load_from_pretrained_step=-1, device="cuda", dtype=None):
        self.device = device

    def reward(self, video_paths, prompts, fps=None, num_frames=None, max_pixels=None, use_norm=True):
        CALLS.append(len(video_paths))
        found = []
        for path, prompt in zip(video_paths, prompts):
            with av.open(path) as file:
                frames = np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]).astype(float)
            scores = {"VQ": frames[0].mean() / 255, "MQ": abs(np.diff(frames, axis=0)).mean() / 255, "TA": float(len(prompt))}
            found.append(scores | {"Overall": sum(scores.values())})
        return found
'''


@pytest.fixture
def judge(tmp_path: Path, monkeypatch) -> Iterator[dict[str, str]]:
    """Folders with the interface of VideoAlign's code and weights."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "inference.py").write_text(JUDGE)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model_config.json").write_text("{}")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "inference", raising=False)
    yield {"code": str(tmp_path / "code"), "checkpoint": str(tmp_path / "weights")}
    sys.modules.pop("inference", None)


def test_video_align_reads_films_shares_a_forward_and_says_what_is_missing(reward, judge, tmp_path):
    bright, moving = levels(*[200] * 5).repeat(8, 1).repeat(8, 2), clip()
    asked = group_of(bright, moving, bright, fps=8.0)
    quality, motion = (reward("video_align", score=score, device="cpu", batch_size=2, **judge) for score in ("VQ", "MQ"))
    vq = quality(asked)
    assert vq[0].value == pytest.approx(200 / 255, abs=0.02) and vq[2].value == vq[0].value
    mq = motion(asked)
    assert mq[0].value == pytest.approx(0, abs=0.01) and mq[1].value > 0.02
    assert set(mq[1].parts) == {"VQ", "MQ", "TA", "change"} and mq[1].parts["TA"] == len(GLIDE.caption)
    # equal clips are one, and the second score needs no forward of its own
    assert sys.modules["inference"].CALLS == [2]
    with pytest.raises(ValueError, match=r"has no inference\.py: set it to the folder of a checkout of KwaiVGI/VideoAlign"):
        reward("video_align", code=str(tmp_path / "weights"), checkpoint=judge["checkpoint"])(group_of(clip()))
    with pytest.raises(ValueError, match=r"has no model_config\.json: set it to the folder of VideoReward"):
        reward("video_align", code=judge["code"], checkpoint=judge["code"])(group_of(clip()))


def test_video_align_scores_alike_behind_a_server(reward, judge):
    """Clips cross a real HTTP connection and are written as films there; VQ and MQ are two rewards of one server."""
    bright, moving = levels(*[200] * 5).repeat(8, 1).repeat(8, 2), clip()
    asked = group_of(bright, moving, fps=8.0)
    fields = {score: reward("video_align", score=score, device="cpu", **judge) for score in ("VQ", "MQ")}
    with serving({score: Served(score, function, "f1") for score, function in fields.items()}) as url:
        remote = {score: RemoteReward(f"{url}/{score}").connect().score(asked) for score in fields}
        calls = list(sys.modules["inference"].CALLS)
        local = {score: function(asked) for score, function in fields.items()}
    assert remote == local and values(remote["MQ"])[1] > values(remote["MQ"])[0]
    assert calls == sys.modules["inference"].CALLS == [2], "both scores and the local ones came from one forward of the server's"


RATE = 8_000


def drawn(*waves: np.ndarray, rate: int = RATE, answer: object = None, **columns: object) -> Group:
    """A group of sounds; a wave of one channel is one."""
    sounds = (Sample(sound=np.atleast_2d(wave).astype(np.float32), rate=rate) for wave in waves)
    return Group(0, Prompt("p", "a sound", answer=answer, columns=columns), tuple(sounds))


def scores(name: str, group: Group, **settings: object) -> list[float]:
    return values(shipped(name, **settings)(group))


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
    one = shipped("onset_iou")(drawn(half, span=[0.5, 0.75]))[0]
    assert one.parts == pytest.approx({"start": 0.5, "end": 0.75})
    assert scores("onset_iou", drawn(ringing, span=[0.505, 1.0])) == pytest.approx([0.99], abs=1e-6)


@pytest.mark.parametrize("bpm", [45.0, 90.0, 120.0, 173.0])
def test_tempo_is_that_of_clicks_and_an_octave_away_earns_nothing(bpm: float):
    [found] = shipped("tempo", bpm=bpm)(drawn(clicks(bpm)))
    assert found.parts["bpm"] == pytest.approx(bpm, rel=0.02) and found.value > 0.94
    assert scores("tempo", drawn(clicks(bpm), bpm=bpm / 2 if bpm > 60 else 2 * bpm)) == [0.0]
    third = 2 ** (1 / 4)
    assert scores("tempo", drawn(clicks(bpm), bpm=bpm * third)) == pytest.approx([0.5], abs=0.06)


def test_what_does_not_beat_has_no_tempo():
    noise = 0.3 * np.random.default_rng(1).uniform(-1, 1, 4 * RATE)
    found = shipped("tempo", bpm=100.0)(drawn(np.zeros(4 * RATE), tone(4.0, 300.0, RATE), clicks(100.0, first=3.9), noise))
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
    refused(said, shipped(name, **settings), group)


@pytest.mark.parametrize("settings", [{"low": 5.0}, {"low": 9.0, "high": 5.0}])
def test_half_a_band_is_refused(settings: dict[str, Any]):
    refused("set both, low below high, or neither", shipped, "band_energy", **settings)


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
    return shipped("in_sync", **settings)(Group(0, Prompt("p", "a clap"), samples))


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
    refused(said, score, replace(made(10, 0.5), **change))
