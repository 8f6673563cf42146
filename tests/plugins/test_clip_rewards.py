"""Rewards of clips on clips that are right, still, jumping or flickering; in this process and behind a real server."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from mmrl.core.types import Group, Prompt, Sample, Scored
from mmrl.data.drawn.gliding import GLIDES, HELD_OUT, TRAIN, Glide, Glides, draw
from mmrl.data.drawn.shapes import to_bytes
from mmrl.serving.media import change_of, clip_of
from mmrl.serving.reward_client import RemoteReward
from mmrl.serving.reward_server import Served, serving

GLIDE = Glide("red", "square", "left")


def clip(glide: Glide = GLIDE, frames: int = 5, side: int = 32, **more: Any) -> np.ndarray:
    return to_bytes(draw(glide, side, frames, **more))


def group_of(*clips: Any, glide: Glide = GLIDE, **fields: Any) -> Group:
    prompt = Prompt("p1", glide.caption, columns=glide._asdict())
    return Group(0, prompt, tuple(Sample(video=one, **fields) for one in clips))


def values(found: list[Any]) -> list[Any]:
    return [None if one is None else one.value for one in found]


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
    with pytest.raises(ValueError, match=r"prompt 'p2' has no picture"):
        reward("first_frame")(Group(0, Prompt("p2", "x"), (Sample(video=own),)))


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
    with pytest.raises(ValueError, match="choose one of train, held_out"):
        dataset("gliding_shapes")("test")
    clips, captions = Glides().batch(np.random.default_rng(0), 40)
    assert clips.shape == (40, 5, 32, 32, 3) and not {glide.caption for glide in HELD_OUT} & set(captions)
    with pytest.raises(ValueError, match="flickers by chance"):
        draw(GLIDE, 32, 5, flickering=True)


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
    with pytest.raises(ValueError, match=r"has 2 frames: evenness needs 3, so raise policy\.frames"):
        reward("smooth_motion")(group_of(right[:2]))


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


def test_frames_are_spread_from_the_first_to_the_last(reward):
    # of seven frames the first, the fourth and the last
    (found,) = reward("over_frames", picture=Brightness(), frames=3)(group_of(levels(51, 9, 9, 102, 9, 9, 153)))
    assert found.value == pytest.approx(0.4)


def test_a_still_clip_never_wins_its_group(reward):
    still, dark, middle = levels(250, 250, 250), levels(50, 60, 70), levels(90, 100, 110)
    found = reward("over_frames", picture=Brightness(), frames=3)(group_of(still, dark, middle))
    assert found[0].value == found[1].value == pytest.approx(60 / 255) and found[2].value == pytest.approx(100 / 255)
    off = reward("over_frames", picture=Brightness(), frames=3, least_change=0.0)(group_of(still, dark, middle))
    assert off[0].value == pytest.approx(250 / 255)


def test_a_frame_without_a_score_leaves_the_clip_without_one(reward):
    assert reward("over_frames", picture=Brightness(), frames=2)(group_of(levels(0, 51)))[0] is None
    with pytest.raises(ValueError, match=r"set picture\.use"):
        reward("over_frames")(group_of(levels(0, 51)))
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
    with pytest.raises(ValueError, match="neither pictures nor bytes"):
        clip_of(Sample(video=clip() / 255), "p")


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


def test_video_align_reads_films_and_shares_a_forward(reward, judge):
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


def test_video_align_says_what_is_missing(reward, judge, tmp_path):
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
