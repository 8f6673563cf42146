"""The models of demos: real classes, the chat of Qwen3-VL, pictures that they see, and frames from real mp4 files."""

import pytest
import torch

from mmrl.app.config import run as configs
from mmrl.core.types import Prompt, Video
from mmrl.data.drawn.moving import draw, plan_clip, style_of
from mmrl.data.drawn.scenes import draw_scene, question
from mmrl.data.files.mp4 import write_mp4
from mmrl.lab.tiny.taught import BOXES, FPS, SPANS, STYLE
from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig
from mmrl.policies.video.sampling import VideoSettings


@pytest.fixture(scope="module")
def untaught(tmp_path_factory):
    return BOXES.build(tmp_path_factory.mktemp("tiny") / "untaught", 1)


def reloaded(folder):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    return AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)


def test_reloads_as_the_real_classes(untaught):
    model, processor = reloaded(untaught)
    assert type(model).__name__ == "Qwen3VLForConditionalGeneration" and type(processor).__name__ == "Qwen3VLProcessor"
    assert type(processor.tokenizer).__name__ == "Qwen2Tokenizer"
    assert sum(weight.numel() for weight in model.parameters()) < 1_000_000


def test_chat_is_written_as_qwen3_vl_writes_it(untaught):
    _, processor = reloaded(untaught)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Where is the 7?"}]}]
    text = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Where is the 7?<|im_end|>\n<|im_start|>assistant\n"
    assert processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) == text
    plain = processor.apply_chat_template([{"role": "system", "content": "Be brief."}], tokenize=False)
    assert plain == "<|im_start|>system\nBe brief.<|im_end|>\n"


def test_questions_have_equal_lengths_and_digits_are_single_tokens(untaught):
    tokenizer = reloaded(untaught)[1].tokenizer
    assert len({len(tokenizer(question(digit)).input_ids) for digit in range(10)}) == 1
    assert len(tokenizer("1000").input_ids) == 4
    for text in ('[{"bbox_2d": [125, 125, 625, 625]}]', "any other text: é, 漢"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    specials = [tokenizer(mark).input_ids for mark in ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|image_pad|>")]
    assert all(len(ids) == 1 for ids in specials)


def test_a_picture_moves_the_answer(untaught):
    model, processor = reloaded(untaught)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question(7)}]}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    fed = [processor(text=[text], images=[[draw_scene(0, i).image]], return_tensors="pt") for i in (0, 1)]
    with torch.no_grad():
        first, second = (model(**one).logits for one in fed)
    assert (first - second).abs().max() > 0.01


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    folder = SPANS.build(tmp_path_factory.mktemp("tiny") / "untaught", 1)
    return TextPolicy(TextPolicyConfig(model=str(folder), video=VideoSettings(fps=FPS, workers=0, cache_mb=0)))


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
    for clip in (plan_clip(3, i, "train", STYLE, ("when",)) for i in range(50)):
        for border in (clip.answer.start, clip.answer.end):
            assert 0.2 - 1e-6 <= border % 1 <= 0.8 + 1e-6


def test_pixels_have_about_mean_0_and_spread_1(policy, tmp_path):
    clips = [plan_clip(0, i, "train", STYLE, ("when", "which")) for i in range(24)]
    files = [write_mp4(tmp_path / f"{i}.mp4", draw(clip), STYLE.fps) for i, clip in enumerate(clips)]
    encoded = [policy.encode(Prompt(str(file), clip.text, (Video(str(file)),))) for clip, file in zip(clips, files, strict=True)]
    pixels = torch.cat([one.media["pixel_values_videos"] for one in encoded])
    assert abs(float(pixels.mean())) < 0.3 and 0.7 < float(pixels.std()) < 1.3


@pytest.mark.parametrize("config", ["tiny/video", "tiny/hurried_spans"])
def test_the_demo_s_clips_are_those_that_the_model_is_made_for(config: str):
    values = configs.load(config).table.values
    for data in (values["data"], values["evaluation"]["data"]):
        assert style_of(data["clip"]) == STYLE
    assert values["policy"]["video"]["fps"] == FPS
