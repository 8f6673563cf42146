"""The frames of a clip that a model sees, and their times; rollouts, readings and transformers alone agree on it."""

import re
from dataclasses import replace
from functools import partial
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.readings import ENTROPY, LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.samples import ClipTime
from mmrl.core.types import Prompt, Reading, Request, Video
from mmrl.policies.text.check.audit import audit
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig, VideoSettings
from mmrl.policies.text.prompt.encode import Encoded
from tests.support.refused import refused
from tests.support.text_policies import (
    FP32_BOUND,
    generated,
    gradients,
    ids_of,
    logprobs,
    make,
    picture,
    plain_logprobs,
    plain_model,
    relative_difference,
    text_trace,
)
from tests.support.videos import even, read_number, uneven, write_video

OMNI = "qwen3_omni_moe_thinker"
SIZES = {"qwen2_5_vl": (112, 56), "qwen3_vl": (128, 64), "smolvlm": (128, 64), "internvl": (128, 64)}
SIZES |= {"llava_onevision": (128, 64), "gemma3": (128, 64), "qwen3_5": (128, 64), "glm4v": (112, 56)}
SIZES |= {OMNI: (128, 64)}
"""Sizes that the Qwen processors leave as they are."""
LATE = {"glm46v": (112, 56), "glm4v_moe": (112, 56), "qwen3_5_moe": (128, 64), "gemma4": (128, 64)}
FAMILIES = (*SIZES, *(pytest.param(family, marks=pytest.mark.evidence) for family in LATE))
QWEN = ("qwen2_5_vl", "qwen3_vl", "qwen3_5")
TRUE = {"even": even(100), "uneven": uneven(60)}
HERE = VideoSettings(workers=0)
SMALL = VideoSettings(workers=0, min_pixels=64**2, max_pixels=128**2)
"""Omni models show a frame as 128 tokens or more."""


@pytest.fixture(scope="session")
def clips(tmp_path_factory):
    """(family, name) -> a file."""
    folder = tmp_path_factory.mktemp("clips")
    return {
        (family, name): write_video(folder / f"{family}-{name}.mp4", times, size=size)
        for family, size in (SIZES | LATE).items()
        for name, times in TRUE.items()
    }


def policy_of(tiny: Any, family: str, **settings: Any) -> TextPolicy:
    settings.setdefault("video", SMALL if family == OMNI else HERE)
    return make(tiny(family), **settings)


def frames_of(policy: TextPolicy, encoded: Encoded) -> list[np.ndarray]:
    """The frames of each clip, put together again from the patches the model is fed."""
    video = policy.processor.video_processor
    side, merge, depth = video.patch_size, video.merge_size, video.temporal_patch_size
    rows = encoded.media["pixel_values_videos"].split(encoded.media["video_grid_thw"].prod(1).tolist())
    found = []
    for patches, (t, h, w) in zip(rows, encoded.media["video_grid_thw"].tolist(), strict=True):
        grid = patches.view(t, h // merge, w // merge, merge, merge, 3, depth, side, side)
        found.append(grid.permute(0, 6, 1, 3, 7, 2, 4, 8, 5).reshape(t * depth, h * side, w * side, 3).numpy())
    return found


def numbers_of(policy: TextPolicy, encoded: Encoded) -> list[list[int]]:
    return [[read_number(frame) for frame in frames] for frames in frames_of(policy, encoded)]


WISHES = [{}, {"fps": 5.0, "start": 1.0, "end": 3.0}, {"frames": 8, "start": 0.5}]


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("name", TRUE)
@pytest.mark.parametrize("family", QWEN)
def test_the_model_sees_the_promised_frames_and_is_told_their_times(tiny, clips, family, name, wish):
    policy = policy_of(tiny, family)
    video = Video(clips[family, name], **wish)
    encoded = policy.encode(Prompt("p", "when?", (video,)))
    (numbers,) = numbers_of(policy, encoded)
    promised = policy.encode.videos(video)
    start = video.start or 0.0
    times = [TRUE[name][number] - start for number in numbers]
    np.testing.assert_allclose(times, promised.times, atol=1.1e-3)
    if family != "qwen2_5_vl":
        told = [float(x) for x in re.findall(r"<([\d.]+) seconds>", policy.tokenizer.decode(encoded.token_ids))]
        pairs = [(a + b) / 2 for a, b in zip(times[::2], times[1::2], strict=True)]
        # written with one digit
        np.testing.assert_allclose(told, pairs, atol=0.0511)
        return
    seen = encoded.positions[0][encoded.token_ids == policy.family.config.video_token_id]
    steps = seen.view(len(numbers) // 2, -1)
    assert (steps == steps[:, :1]).all()
    told = (steps[:, 0] - steps[0, 0]) / policy.family.config.vision_config.tokens_per_second
    true = np.asarray(times[::2]) - times[0]
    # positions are whole numbers, rounded down; where frames are even, of the moment that the frame is nearest to
    slack = 1 / policy.family.config.vision_config.tokens_per_second + (0.5 / 25 if name == "even" else 0) + 2e-3
    assert (true - told.numpy() < slack).all() and (told.numpy() - true < slack - 0.24).all()


def test_time_runs_on_the_models_own_rule_where_frames_are_even(tiny, clips):
    """8 frames of 3.96 seconds and 4 positions a second: each pair of frames is 4.53 positions after the one before."""
    policy = policy_of(tiny, "qwen2_5_vl")
    encoded = policy.encode(Prompt("p", "when?", (Video(clips["qwen2_5_vl", "even"]),)))
    seen = encoded.positions[0][encoded.token_ids == policy.family.config.video_token_id]
    assert (seen - seen[0]).unique().tolist() == [0, 4, 9, 13]


def fed_by_hand(processor: Any, path: str, family: str) -> Any:
    """ "a <video> b" with the frames that one second in two takes of an even clip, through the processor alone."""
    file: Any = av.open(path)
    with file:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])
    indices = [0, 14, 28, 42, 57, 71, 85, 99]
    chat = [{"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "video"}, {"type": "text", "text": " b"}]}]
    return processor(
        text=[processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)],
        videos=[frames[indices]],
        video_metadata=[{"total_num_frames": 8 * 99 / 7, "fps": 25.0, "frames_indices": indices, "duration": 4.0}],
        do_sample_frames=False,
        return_tensors="pt",
        # the others read the spacing from the metadata
        **({"fps": 7 / 3.96, "size": {"shortest_edge": 64**2, "longest_edge": 128**2}} if family == OMNI else {}),
    )


@pytest.mark.parametrize("family", [*QWEN, OMNI, "glm4v", "llava_onevision", "glm46v", "gemma4"])
def test_rollouts_equal_transformers_alone_on_clips(tiny, clips, family):
    """Frames read by hand, metadata that spaces them as they are, the processor's own resizing, one plain forward per row."""
    policy = policy_of(tiny, family)
    path = clips[family, "even"]
    rollouts = policy.rollout([Request(Prompt("p", "a <video> b", (Video(path),)), 3, 0, seed=4)])
    places = {"qwen2_5_vl": lambda model, fed: {"position_ids": counted_on(model, fed)}}.get(family, lambda model, fed: {})
    feed = partial(fed_by_hand, path=path, family=family)
    expected = plain_logprobs(plain_model(tiny(family)), policy, rollouts, lambda processor, _: feed(processor), places)
    torch.testing.assert_close(rollouts.recorded[ROLLOUT_LOGPROBS], expected, atol=FP32_BOUND, rtol=0)


def test_greedy_answers_to_a_clip_are_those_of_generate(tiny, clips):
    """Qwen3-Omni's: what follows a clip stands between whole positions, here and while transformers writes."""
    policy = policy_of(tiny, OMNI)
    path = clips[OMNI, "even"]
    prompt = Prompt("p", "a <video> b", (Video(path),))
    rollouts = policy.rollout([Request(prompt, 1, 0)], Sampling(temperature=0.0, max_new_tokens=6))
    model, processor = plain_model(tiny(OMNI))
    fed = fed_by_hand(processor, path, OMNI)
    assert ids_of(rollouts.groups[0].samples[0]) == generated(policy, model, fed, 6)
    encoded = policy.encode(prompt)
    own = encoded.positions[0][encoded.token_ids == policy.family.token_of("video")]
    # 13 positions a second, and a pair of frames every 2 * 3.96 / 7 seconds
    torch.testing.assert_close(own.unique() - own[0], torch.arange(4) * 13 * 2 * 3.96 / 7, check_dtype=False, atol=1e-5, rtol=0)
    assert float(encoded.positions[0, -1] % 1) != 0


def test_gemma_is_shown_the_frames_of_a_clip_as_pictures_after_their_times(tiny, clips):
    """As one writes them by hand: the text of a time, then a picture, for every frame; other pictures stay where they were."""
    policy = policy_of(tiny, "gemma3")
    video, own = Video(clips["gemma3", "even"], frames=4), picture(0)
    frames = policy.encode.videos(video)
    shown = [Image.fromarray(pixels) for pixels in frames.pixels]
    text = "<image> and " + "".join(f"<{time:.1f} seconds><image>" for time in frames.times) + "?"
    encoded = policy.encode(Prompt("clip", "<image> and <video>?", (own, video)))
    by_hand = policy.encode(Prompt("hand", text, (own, *shown)))
    assert encoded.token_ids.tolist() == by_hand.token_ids.tolist()
    torch.testing.assert_close(encoded.media["pixel_values"], by_hand.media["pixel_values"], rtol=0, atol=0)
    assert len(encoded.sizes) == 1 and encoded.clips == (ClipTime(4.0, 25.0, 4),)


def counted_on(model: Any, whole: dict[str, torch.Tensor]) -> torch.Tensor:
    """The library's positions, and after the clip one more for every token, from the clip's largest on."""
    names = ("input_ids", "mm_token_type_ids", "video_grid_thw", "second_per_grid_ts", "attention_mask")
    positions = model.model.get_rope_index(**{name: whole[name] for name in names})[0]
    last = int((whole["mm_token_type_ids"][0] == 2).nonzero()[-1])
    rest = positions.shape[-1] - last - 1
    positions[..., last + 1 :] = positions[..., : last + 1].max() + 1 + torch.arange(rest)
    return positions


def mixed(clips: Any, family: str) -> list[Request]:
    """A clip, two clips, a picture, two pictures, none, and where the model takes it a clip and a picture together."""
    even, uneven = clips[family, "even"], clips[family, "uneven"]
    prompts = [
        Prompt("clip", "when?", (Video(even),)),
        Prompt("clips", "<video> then <video>", (Video(uneven, frames=4), Video(even, start=1.0, end=3.0, frames=4))),
        Prompt("picture", "what?", (picture(0),)),
        Prompt("pictures", "<image> or <image>", (picture(1), picture(2, 90, 40))),
        Prompt("text", "hi"),
    ]
    if family not in ("smolvlm", "glm4v", "glm4v_moe", "glm46v"):
        prompts.append(Prompt("both", "<video> has <image>?", (Video(uneven, frames=6), picture(3))))
    return [Request(prompt, 1 + i % 2, i, seed=i) for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_batches_read_as_they_were_sampled_both_ways(tiny, clips, family):
    shared, repeated = (policy_of(tiny, family, prefix=prefix) for prefix in ("auto", "repeated"))
    rollouts = shared.rollout(mixed(clips, family))
    audit(text_trace(rollouts.trace))
    for policy in (shared, repeated):
        torch.testing.assert_close(
            rollouts.recorded[ROLLOUT_LOGPROBS], logprobs(policy, rollouts).detach(), atol=FP32_BOUND, rtol=0
        )
    assert relative_difference(gradients(shared, rollouts), gradients(repeated, rollouts)) < 1e-4
    alone = shared.rollout(mixed(clips, family)[:1])
    torch.testing.assert_close(
        alone.recorded[ROLLOUT_LOGPROBS][0],
        rollouts.recorded[ROLLOUT_LOGPROBS][0, : alone.action_mask.shape[1]],
        atol=FP32_BOUND,
        rtol=0,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_placeholders_are_vision_features(tiny, clips, family):
    policy = policy_of(tiny, family)
    for request in mixed(clips, family):
        encoded = policy.encode(request.prompt)
        given = 0
        for kind, media in policy.family.kinds(encoded.media).items():
            features = policy.family.look(policy.net.core, kind, [media]).pooler_output
            assert len(features) == policy.family.entries(encoded.media, kind)
            given += sum(entry.shape[:-1].numel() for entry in features)
        held = [int((encoded.token_ids == policy.family.token_of(k)).sum()) for k in policy.family.placeholders(encoded.media)]
        assert sum(held) == given
        assert held == list(policy.family.placeholders(encoded.media).values())


@pytest.mark.parametrize("family", FAMILIES)
def test_clips_reach_their_own_prompt_and_their_order_counts(tiny, clips, family):
    policy = policy_of(tiny, family)
    a, b = (Video(clips[family, name], frames=4) for name in TRUE)
    pair = [Prompt("1", "<video> or <video>?", (a, b)), Prompt("2", "<video> or <video>?", (b, a)), Prompt("3", "which?", (a,))]

    def read(order: list[int]) -> torch.Tensor:
        rollouts = policy.rollout([Request(pair[i], 2, i, role="injected", written="yes") for i in order])
        values = logprobs(policy, rollouts).detach()
        return torch.stack([values[rollouts.group_ids == i][0] for i in range(3)])

    inward = read([0, 1, 2])
    torch.testing.assert_close(inward, read([2, 0, 1]), atol=FP32_BOUND, rtol=0)
    assert (inward[0] - inward[1]).abs().max() > 1e-3


def test_a_clip_passes_the_vision_tower_once_per_group(tiny, clips):
    for prefix in ("packed", "repeated"):
        policy = policy_of(tiny, "qwen3_vl", prefix=prefix)
        patches: list[int] = []
        policy.net.core.visual.register_forward_hook(
            lambda m, args, kwargs, out, seen=patches: seen.append(len(args[0])), with_kwargs=True
        )
        rollouts = policy.rollout([Request(Prompt("p", "?", (Video(clips["qwen3_vl", "even"]),)), 4, 0)])
        each = len(text_trace(rollouts.trace).prompts[0].media["pixel_values_videos"])
        logprobs(policy, rollouts)
        assert patches == [each, each]


@pytest.mark.parametrize("family", QWEN)
def test_frames_have_the_size_the_processor_gives_them(tiny, tmp_path, family):
    """Sizes are planned where frames are decoded; the processor's own rule must give the same."""
    policy = policy_of(tiny, family)
    video = policy.processor.video_processor
    budget = policy.encode.videos.rule.budget
    assert budget is not None
    for frames, height, width in ((4, 300, 200), (16, 90, 160), (8, 40, 30), (40, 720, 1280), (2, 64, 64)):
        high, wide = budget.size(frames, height, width)
        patches = video.get_num_of_video_patches(frames, height, width, {})
        assert frames // 2 * (high // video.patch_size) * (wide // video.patch_size) == patches


def test_pixel_settings_bound_frames(tiny, clips):
    path = clips["qwen3_vl", "even"]
    for settings in (VideoSettings(workers=0, max_pixels=64 * 32), VideoSettings(workers=0, total_pixels=8 * 64 * 32)):
        policy = policy_of(tiny, "qwen3_vl", video=settings)
        encoded = policy.encode(Prompt("p", "?", (Video(path, frames=8),)))
        assert encoded.media["video_grid_thw"].tolist() == [[4, 2, 4]]
    larger = policy_of(tiny, "qwen2_5_vl", video=VideoSettings(workers=0, min_pixels=150 * 100, max_pixels=200 * 100))
    high, wide = (14 * x for x in larger.encode(Prompt("p", "?", (Video(path),))).media["video_grid_thw"][0, 1:].tolist())
    assert 150 * 100 <= high * wide <= 200 * 100
    tight = policy_of(tiny, "qwen3_vl", video=VideoSettings(workers=0, total_pixels=4000))
    refused(r"prompt 'p': the video .*even\.mp4': 8 frames of 500 pixels each", tight.encode, Prompt("p", "?", (Video(path),)))
    refused(r"remove policy\.video\.max_pixels", policy_of, tiny, "smolvlm", video=VideoSettings(max_pixels=1000))


def test_rewards_see_how_long_clips_are(tiny, clips):
    path = clips["qwen3_vl", "even"]
    prompt = Prompt("p", "<video> <image>", (Video(path, start=1.0, end=3.0), picture(0)))
    sample = policy_of(tiny, "qwen3_vl").rollout([Request(prompt, 1, 0)]).groups[0].samples[0]
    assert sample.clips == (ClipTime(2.0, 25.0, 4),) and len(sample.media_sizes) == 1


def test_a_path_with_the_suffix_of_a_video_is_one(tiny, clips):
    policy = policy_of(tiny, "qwen3_vl")
    path = clips["qwen3_vl", "even"]
    a, b = (policy.encode(Prompt("p", "?", (media,))) for media in (path, Video(path)))
    assert torch.equal(a.media["pixel_values_videos"], b.media["pixel_values_videos"])


def test_what_does_not_fit_is_named(tiny, clips):
    video = Video(clips["qwen3_vl", "even"])
    pair = tuple(replace(video, frames=count) for count in (4, 6))
    counts = r" has \d <image> markers and \d <video> markers, \d pictures and \d clips"
    neither = [("<image>", (video,)), ("<video> <image>", (picture(0), video)), ("<video>", ()), ("<video>", (video, video))]
    for family, text, media, said in (
        *(("qwen3_vl", text, media, counts) for text, media in neither),
        ("qwen3_vl", "?", (Video(video.source, start=9.0),), r": the video .*: it asks for 9 s to 4 s"),
        ("qwen3_vl", "<|video_pad|>", (picture(0),), r": (Found 1 <.video_pad.> tokens in the text|its text holds 1 video)"),
        ("glm4v", "<video> <image>", (video, picture(0)), ": glm4v takes pictures or clips in one prompt"),
        ("smolvlm", "<video> <image>", (video, picture(0)), ": smolvlm takes pictures or clips in one prompt"),
        ("internvl", "<video> <video>", pair, ": internvl wants as many frames of every clip of a prompt, not 4, 6"),
    ):
        refused(f"prompt 'p9'{said}", policy_of(tiny, family).encode, Prompt("p9", text, media))
    gone = Prompt("p9", "?", (Video("gone.mp4"),), columns={"file_row": "clips.jsonl:12"})
    said = r"prompt 'p9' \(clips\.jsonl:12\): there is no video .*gone\.mp4"
    refused(said, policy_of(tiny, "qwen3_vl").encode, gone, error=FileNotFoundError)


def shuffle(prompt: Prompt, seed: int) -> Prompt:
    return replace(prompt, media=tuple(replace(media, shuffle=seed) for media in prompt.media))


def hint(prompt: Prompt, seed: int) -> Prompt:
    return Prompt(prompt.id, f"{prompt.text} It is {seed % 10}.", prompt.media, prompt.answer)


@pytest.mark.parametrize("prefix", ["packed", "repeated"])
def test_a_view_is_what_the_sampler_sees_and_readings_may(tiny, clips, prefix):
    config = TextPolicyConfig(tiny("qwen3_vl"), video=HERE, prefix=prefix, sampling=Sampling(max_new_tokens=5))
    policy = TextPolicy(config, views={"shuffled": shuffle, "hinted": hint})
    prompt = Prompt("p", "when?", (Video(clips["qwen3_vl", "even"]),))
    plain, hinted, probe = (
        Request(prompt, 2, 0, seed=1),
        Request(prompt, 2, 0, view="hinted", seed=2),
        Request(prompt, 2, 0, view="shuffled", role="probe", seed=3),
    )
    rollouts = policy.rollout([plain, hinted, probe])
    assert rollouts.recorded[ROLLOUT_LOGPROBS].isnan().any(1).tolist() == [False, False, True, True]
    assert [len(rollouts.groups[0].samples), len(rollouts.groups[0].probes["shuffled"])] == [4, 2]
    asked = [Reading("logprobs", view=view) for view in ("plain", "hinted", "shuffled")]
    read = policy.read(rollouts.trace, [*asked, ENTROPY], rollouts.action_mask)
    torch.testing.assert_close(read[LOGPROBS][:2].detach(), rollouts.recorded[ROLLOUT_LOGPROBS][:2], atol=FP32_BOUND, rtol=0)
    # A prompt that is what the view makes of it reads the same, and is answered the same.
    seed = text_trace(rollouts.trace).prompts[0].seed
    for view, reading in ((hint, asked[1]), (shuffle, asked[2])):
        by_hand = replace(text_trace(rollouts.trace), prompts=(policy.encode(view(prompt, seed)),))
        expected = policy.read(by_hand, [LOGPROBS], rollouts.action_mask)[LOGPROBS]
        torch.testing.assert_close(read[reading].detach(), expected.detach(), atol=FP32_BOUND, rtol=0)
        assert (read[reading] - read[LOGPROBS]).abs().max() > 1e-4
    drawn = policy.rollout([Request(hint(prompt, seed), 2, 0, seed=2)])
    assert [ids_of(s) for s in drawn.groups[0].samples] == [ids_of(s) for s in rollouts.groups[0].samples[2:]]
    with pytest.raises(ValueError, match="names the view 'masked'; this text policy has hinted, plain, shuffled"):
        policy.rollout([Request(prompt, 1, 0, view="masked")])


def test_a_shuffled_clip_shows_the_same_frames_in_the_seeds_order(tiny, clips):
    policy = policy_of(tiny, "qwen3_vl")
    prompt = Prompt("p", "when?", (Video(clips["qwen3_vl", "even"]),))
    plain, mixed = policy.encode(prompt), policy.encode(shuffle(prompt, 5))
    order = np.random.RandomState(5).permutation(8)
    assert numbers_of(policy, mixed)[0] == [numbers_of(policy, plain)[0][i] for i in order]
    assert torch.equal(plain.token_ids, mixed.token_ids) and torch.equal(plain.positions, mixed.positions)


def test_views_differ_between_steps_and_repeat_within_one(tiny):
    policy = TextPolicy(TextPolicyConfig(tiny("qwen3_vl"), video=HERE), views={"hinted": hint})
    prompt = Prompt("p", "when?")
    seeds = [
        text_trace(policy.rollout([Request(prompt, 1, group, seed=seed)]).trace).prompts[0].seed
        for group, seed in ((0, 1), (0, 2), (1, 1))
    ]
    assert seeds[0] == seeds[1] != seeds[2]
