"""The video demo's model: real classes, frames from real mp4 files, sloppy labels, a warm start that lowers the loss."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mmrl.answers.spans.interval import temporal_iou
from mmrl.answers.spans.parsing import parse_intervals
from mmrl.app.config import run as configs
from mmrl.core.types import Prompt, Request, Video
from mmrl.data.drawn.moving import draw, plan_clip, style_of
from mmrl.data.files.mp4 import write_mp4
from mmrl.policies.text.policy import Sampling
from mmrl.tiny.text import clips
from mmrl.tiny.text.clips import FPS, STYLE, WarmStart, answer_of, build, fingerprint, lessons, warm_start, watcher

SHORT = WarmStart(steps=16, batch_size=8, num_clips=24)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return watcher(build(tmp_path_factory.mktemp("tiny") / "untrained", seed=1))


@pytest.fixture(scope="module")
def pool(policy):
    return lessons(policy, SHORT)


def planned(kind, number=300):
    return [plan_clip(3, i, "train", STYLE, (kind,)) for i in range(number)]


def test_real_classes_below_a_million_weights(policy):
    assert type(policy.net.model).__name__ == "Qwen3VLForConditionalGeneration"
    assert type(policy.processor).__name__ == "Qwen3VLProcessor"
    assert sum(weight.numel() for weight in policy.parameters()) < 1_000_000


def test_a_clip_is_four_tokens_and_a_time_stamp_per_second(policy, tmp_path):
    clip = plan_clip(0, 0, "held_out", STYLE, ("when",))
    file = write_mp4(tmp_path / "clip.mp4", draw(clip), STYLE.fps)
    prompt = policy.encode(Prompt("p", clip.text, (Video(str(file)),)))
    text = policy.tokenizer.decode(prompt.token_ids)
    # pairs of frames at 0.0 and 0.5, 1.0 and 1.5, ... seconds
    stamps = "".join(f"<{k}.2 seconds><|vision_start|>{'<|video_pad|>' * 4}<|vision_end|>" for k in range(6))
    assert f"{stamps}" in text and text.count("<|video_pad|>") == 24
    assert "When is the 7 visible?<|im_end|>" in text
    assert prompt.media["video_grid_thw"].tolist() == [[6, 4, 4]]


def test_borders_of_spans_lie_off_the_model_s_seconds():
    assert STYLE.time_grid == 1.0
    for clip in planned("when", 50):
        for border in (clip.answer.start, clip.answer.end):
            assert 0.2 - 1e-6 <= border % 1 <= 0.8 + 1e-6


def test_spans_are_too_long_and_half_of_those_with_a_choice_are_another_digit_s():
    rng, wrong, clear = np.random.default_rng(0), 0, 0
    for clip in planned("when"):
        (span,) = parse_intervals(answer_of(clip, WarmStart(), rng))
        overlaps = [temporal_iou(span, clip.span(actor)) for actor in clip.digits]
        held = [span.start <= clip.span(a).start + 0.05 and span.end >= clip.span(a).end - 0.05 for a in clip.digits]
        assert any(held)
        if len(clip.digits) == 1:
            # both ends out by at most 0.6 of the length, each rounded by at most 0.05 seconds
            assert overlaps[0] > 1 / 2.2 - 0.06
        elif abs(overlaps[0] - overlaps[1]) > 0.2:
            clear, wrong = clear + 1, wrong + (overlaps[1] > overlaps[0])
    assert 0.35 < wrong / clear < 0.65


def test_of_two_digits_mostly_one_is_named():
    rng, settings, whole, both = np.random.default_rng(0), WarmStart(), 0, 0
    for clip in planned("which"):
        named, right = set(answer_of(clip, settings, rng).split(",")), set(clip.answer.split(","))
        assert named <= right and (len(right) == 2 or named == right)
        both, whole = both + (len(right) == 2), whole + (len(right) == 2 and named == right)
    assert 0.15 < whole / both < 0.35


def test_only_the_answer_is_learnt(policy, pool):
    answers = ["1.5 to 4.0", "A", "B,D"]
    batch = clips._inputs(policy, pool[:3], answers)
    for answer, ids in zip(answers, batch["labels"], strict=True):
        assert policy.tokenizer.decode(ids[ids != -100]) == answer + "<|im_end|>"
    assert len(batch["video_grid_thw"]) == 3 and len(batch["pixel_values_videos"]) == 3 * 96


def test_pixels_have_about_mean_0_and_spread_1(pool):
    pixels = torch.cat([lesson.prompt.media["pixel_values_videos"] for lesson in pool])
    assert abs(float(pixels.mean())) < 0.3 and 0.7 < float(pixels.std()) < 1.3


def test_the_warm_start_lowers_the_loss_once_and_answers(tmp_path):
    losses = []
    folder = warm_start(SHORT, tmp_path / "model", lambda step, steps, loss: losses.append((step, steps, loss)))
    assert [step for step, _, _ in losses] == [*range(1, 17)] and {steps for _, steps, _ in losses} == {16}
    values = [loss for _, _, loss in losses]
    assert np.mean(values[-4:]) < 0.7 * np.mean(values[:2])
    assert warm_start(SHORT, folder, lambda *_: pytest.fail("taught twice")) == folder
    policy = watcher(folder)
    clip = plan_clip(0, 0, "held_out", STYLE, ("when",))
    file = write_mp4(tmp_path / "clip.mp4", draw(clip), STYLE.fps)
    request = Request(Prompt("p", clip.text, (Video(str(file)),), clip.answer), 2, 0)
    rollouts = policy.rollout([request], Sampling(max_new_tokens=4))
    assert [sample.clips[0].seconds for sample in rollouts.groups[0].samples] == [5.6, 5.6]


def test_the_cache_tells_settings_apart():
    names = {fingerprint(settings) for settings in (SHORT, replace(SHORT, seed=1), replace(SHORT, careless=0.5))}
    assert len(names) == 3 and fingerprint(SHORT) == fingerprint(replace(SHORT))


def test_the_demo_s_clips_are_those_of_the_warm_start():
    values = configs.load("tiny/video").table.values
    for data in (values["data"], values["evaluation"]["data"]):
        assert style_of(data["clip"]) == STYLE
    assert values["policy"]["video"]["fps"] == FPS
