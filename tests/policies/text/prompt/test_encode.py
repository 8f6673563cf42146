"""From prompts to what the model is fed: pictures, templates, sizes, the audit, and what a wrong prompt is told."""

from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.app.modality.text import TextModality
from mmrl.core.types import MediaSize, Prompt, Request, Video
from mmrl.lab.tiny.byte_tokens import byte_tokenizer
from mmrl.lab.tiny.text.llms import turns
from mmrl.policies.shared.pictures import open_picture
from mmrl.policies.text.families import family_of
from mmrl.policies.text.families.base import pad_cat
from mmrl.policies.text.families.qwen_vl import say_shared
from mmrl.policies.text.prompt.templates import answer_template, messages, tags_of
from mmrl.policies.text.settings import TextPolicyConfig
from tests.support.refused import refused
from tests.support.text_policies import EVERY, FAMILIES, assert_noted, logprobs, make, picture
from tests.support.videos import even, write_video

SIZES = [(64, 48), (30, 200), (200, 30), (28, 28), (57, 113), (400, 400), (10, 12)]


@pytest.mark.parametrize("family", EVERY)
def test_expected_features_are_what_the_vision_tower_gives(tiny, family):
    policy = make(tiny(family))
    # transformers squeezes the lone feature of a tiny picture away
    sizes = SIZES if family != "mistral3" else [size for size in SIZES if min(size) > 28]
    for i, (width, height) in enumerate(sizes):
        for pictures in ([picture(i, width, height)], [picture(i, width, height), picture(i + 1, 50, 60)]):
            encoded = policy.encode(Prompt("p", "?", tuple(pictures)))
            features = policy.family.look(policy.net.core, "image", [encoded.media]).pooler_output
            assert len(features) == policy.family.entries(encoded.media)
            given = sum(entry.shape[:-1].numel() for entry in features)
            assert given == policy.family.num_features(encoded.media)
            assert given == int((encoded.token_ids == policy.family.image_token_id).sum())


@pytest.mark.parametrize(("family", "patch"), [("qwen2_5_vl", 14), ("qwen3_vl", 16)])
def test_qwen_sees_the_grid_times_the_patch(tiny, family, patch):
    policy = make(tiny(family), min_pixels=56 * 56, max_pixels=112 * 112)
    encoded = policy.encode(Prompt("p", "?", (picture(0, 400, 100), picture(1, 10, 10))))
    for size, grid in zip(encoded.sizes, encoded.media["image_grid_thw"].tolist(), strict=True):
        assert (size.seen_width, size.seen_height) == (grid[2] * patch, grid[1] * patch)
        assert 56 * 56 <= size.seen_width * size.seen_height <= 112 * 112
        assert size.seen_width % (2 * patch) == 0
    assert [(size.width, size.height) for size in encoded.sizes] == [(400, 100), (10, 10)]
    sample = policy.rollout([Request(Prompt("p", "?", (picture(0, 400, 100),)), 1, 0)]).groups[0].samples[0]
    assert sample.media_sizes == (encoded.sizes[0],)


def test_samples_know_the_thought_that_their_template_opened(tiny):
    policy, asked = make(tiny("qwen3_vl")), [Request(Prompt("p", "<think> is a tag?"), 1, 0), Request(Prompt("q", "?"), 1, 1)]
    asked += [Request(Prompt("r", "?"), 1, 2, role="injected", written="B")]

    def opened() -> list[str]:
        return [sample.opened for _, sample in policy.rollout(asked).samples()]

    plain = policy.processor.chat_template
    assert opened() == ["", "", ""]
    policy.processor.chat_template = f"{plain}<think>\n"
    assert opened() == ["<think>", "<think>", ""], "what was given stands as it was given"
    policy.processor.chat_template = f"{plain}<think>\n\n</think>\n\n"
    assert opened() == ["", "", ""]


def test_tile_models_report_the_size_of_the_file(tiny):
    encoded = make(tiny("internvl")).encode(Prompt("p", "?", (picture(0, 90, 40),)))
    assert encoded.sizes == (MediaSize(90, 40, 90, 40),)


@pytest.mark.parametrize(
    ("family", "space"), [("qwen2_5_vl", "resized"), ("qwen3_vl", "norm1000"), ("internvl", "norm1000"), ("smolvlm", None)]
)
def test_box_space_is_the_familys_or_must_be_declared(tiny, family, space):
    assert make(tiny(family)).encode.box_space == space
    assert make(tiny(family), box_space="pixel").encode.box_space == "pixel"


def test_a_grey_picture_is_not_taken_for_padding(tiny):
    """SmolVLM drops tiles of zeros; normalized middle grey would be one if it had an exact byte value."""
    policy = make(tiny("smolvlm"))
    policy.processor.image_processor.image_mean = policy.processor.image_processor.image_std = [128 / 255] * 3
    grey = Prompt("grey", "?", (Image.new("RGB", (32, 32), (128, 128, 128)),))
    encoded = policy.encode(grey)
    assert encoded.media["pixel_values"].abs().max() < 1e-7
    rollouts = policy.rollout([Request(grey, 2, 0), Request(Prompt("p", "?", (picture(0),)), 1, 1)])
    assert_noted(rollouts, logprobs(policy, rollouts))


def test_family_is_chosen_by_model_type(tiny):
    from transformers import AutoConfig

    names = [type(family_of(AutoConfig.from_pretrained(tiny(family)))).__name__ for family in FAMILIES]
    assert names == ["QwenVL", "QwenVL", "SmolVLM", "InternVL", "LlavaOnevision", "Gemma3", "QwenVL", "Glm4v"]


def test_pad_cat_pads_at_the_end():
    a, b = torch.ones(1, 2, 1), 2 * torch.ones(2, 1, 2)
    expected = torch.tensor([[[1.0, 0], [1, 0]], [[2, 2], [0, 0]], [[2, 2], [0, 0]]])
    assert torch.equal(pad_cat([a, b]), expected)


def test_pictures_stand_at_their_markers():
    chat = messages(Prompt("p", "a <image> b <image>", (1, 2)), "Q: {question}!", "be brief")
    assert chat == [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Q: a "},
                {"type": "image"},
                {"type": "text", "text": " b "},
                {"type": "image"},
                {"type": "text", "text": "!"},
            ],
        },
    ]
    alone = messages(Prompt("p", "what?"), "Q: {question}!")
    assert alone == [{"role": "user", "content": [{"type": "text", "text": "Q: what?!"}]}]
    first = messages(Prompt("p", "what?", (1,)), answer_template("none"))
    assert first == [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}]
    for wrong in (Prompt("p9", "a <image>", ()), Prompt("p9", "<image>", (1, 2))):
        refused("prompt 'p9' has 1 <image> markers", messages, wrong, answer_template("none"))


def test_answer_formats_tell_the_tags(tiny):
    assert "<answer>" in answer_template("direct") and "<think>" not in answer_template("direct")
    assert answer_template("think").index("<think>") < answer_template("think").index("<answer>")
    assert answer_template("In short: {question}") == "In short: {question}"
    refused("'thinks': use one of none, direct, think", answer_template, "thinks")
    policy = make(tiny("qwen3_vl"), answer_format="think", system_prompt="You see.")
    text = policy.tokenizer.decode(policy.encode(Prompt("p", "where?")).token_ids)
    assert text.index("You see.") < text.index("where?") < text.index("<think>") < text.index("assistant")
    tags = [tags_of(name) for name in ("none", "direct", "think", "box", "think_box", "In short: {question}")]
    assert tags == [None, "direct", "think", "direct", "think", None]
    assert tags_of("{question} Write <answer>yes</answer>.") == "direct"


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("qwen2_5_vl", "in pixels of the picture as you see it"),
        ("qwen3_vl", "in thousandths of the picture's width and height, from 0 to 1000"),
        ("internvl", "in thousandths of the picture's width and height, from 0 to 1000"),
    ],
)
def test_a_box_is_asked_for_as_the_model_writes_it(tiny, family, words):
    for answer_format in ("box", "think_box"):
        policy = make(tiny(family), answer_format=answer_format)
        text = policy.tokenizer.decode(policy.encode(Prompt("p", "where?", (picture(0),))).token_ids)
        assert text.index("where?") < text.index(f"as [x1, y1, x2, y2] {words}") < text.index("inside <answer>")
        assert ("<think>" in text) == (answer_format == "think_box")


def test_no_box_is_asked_of_a_model_that_nobody_knows_to_write_any(tiny):
    look = TextModality().check_prompts
    with pytest.raises(ValueError, match=r"'box', and how this model writes boxes is unknown: set policy.box_space to norm1000"):
        look(TextPolicyConfig(tiny("smolvlm"), answer_format="box"), [])
    look(TextPolicyConfig(tiny("smolvlm"), answer_format="box", box_space="norm1"), [])
    assert "in shares of" in answer_template("box", "norm1")
    assert "as [y1, x1, y2, x2] in thousandths" in answer_template("box", "norm1000_yx")
    with pytest.raises(ValueError, match="'boxes': use one of none, direct, think, box, think_box, or a text with"):
        look(TextPolicyConfig("anywhere", answer_format="boxes"), [])


def test_pictures_are_turned_upright_and_made_rgb(tmp_path):
    upright = picture(0, 40, 20)
    turned = upright.rotate(90, expand=True)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    turned.save(tmp_path / "turned.png", exif=exif)
    opened = open_picture(tmp_path / "turned.png", "p")
    assert opened.size == (40, 20) and opened.tobytes() == upright.tobytes()
    assert open_picture(picture(0).convert("RGBA"), "p").mode == "RGB"
    assert open_picture(str(tmp_path / "turned.png"), "p").mode == "RGB"


def test_wrong_pictures_are_named(tmp_path):
    text, cut = tmp_path / "text.jpg", tmp_path / "cut.jpg"
    text.write_text("no picture")
    picture(0, 200, 200).save(cut)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    refused(r"prompt 'p7': there is no picture .*cat\.jpg", open_picture, tmp_path / "cat.jpg", "p7", error=FileNotFoundError)
    for source, said in (
        (text, r".*text\.jpg' is not a picture"),
        (cut, r"the picture .*cut\.jpg' is damaged"),
        (b"", "a picture is a path or a PIL image, not bytes"),
    ):
        refused(f"prompt 'p7': {said}", open_picture, source, "p7")


def test_prompts_are_never_cut_and_spell_no_placeholder(tiny):
    policy = make(tiny("qwen3_vl"), max_prompt_tokens=30)
    policy.encode(Prompt("short", "?"))
    refused(r"prompt 'long': it has \d+ tokens, .* policy.max_prompt_tokens is 30", policy.encode, Prompt("long", "?" * 40))
    with pytest.raises(ValueError, match=r"prompt 'p3': Found 1 <\|image_pad\|> tokens in the text but no images"):
        make(tiny("qwen3_vl")).encode(Prompt("p3", "<|image_pad|> what?"))


def test_wrong_models_are_refused(tmp_path):
    from transformers import CLIPConfig, GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

    (tmp_path / "empty").mkdir()
    CLIPConfig().save_pretrained(tmp_path / "clip")
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    Qwen2ForCausalLM(Qwen2Config(vocab_size=64, num_hidden_layers=1, **sizes)).save_pretrained(tmp_path / "bare")
    tokenizer = byte_tokenizer({})
    tokenizer.chat_template = turns()
    tokenizer.save_pretrained(tmp_path / "gpt2")
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path / "gpt2")
    gone = r"the folder '.*empty' holds no config\.json: give the folder of a model"
    refused(gone, make, str(tmp_path / "empty"), error=FileNotFoundError)
    for name, said in (
        ("clip", "is of type clip, which does not write text"),
        ("bare", "has no chat template: use an instruction-tuned model"),
        ("gpt2", "gpt2 keeps its layers elsewhere than other language models"),
    ):
        refused(said, make, str(tmp_path / name))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_a_chat_template_that_does_not_end_is_refused_at_the_first_prompt(tiny, family: str):
    policy = make(tiny(family))
    policy.processor.chat_template = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
    refused(r"prompt 'p': policy\.model .*its chat template takes more than 200,000 turns", policy.encode, Prompt("p", "hi"))
    policy.processor.chat_template = "{{ 1 + 'x' }}"
    refused(r"its chat template fails \(TypeError: .*download it again", policy.encode, Prompt("p", "hi"))


def test_frames_that_share_a_position_are_told_of_once(tiny, tmp_path, caplog):
    """At 2 positions a second, pairs of frames are a position apart up to 4 frames a second."""
    clip = write_video(tmp_path / "a.mp4", even(60, 20.0), size=(64, 32))
    policy = make(tiny("qwen2_5_vl"))
    rate = policy.family.config.vision_config.tokens_per_second
    say_shared.cache_clear()
    policy.encode(Prompt("slow", "when?", (Video(clip, fps=2.0 * rate),)))
    assert "positions a second" not in caplog.text
    for fps in (2.5 * rate, 4.0 * rate):
        policy.encode(Prompt("fast", "when?", (Video(clip, fps=fps),)))
    assert caplog.text.count(f"qwen2_5_vl counts {rate} positions a second") == 1
    assert f"at most {2 * rate} frames a second" in caplog.text
