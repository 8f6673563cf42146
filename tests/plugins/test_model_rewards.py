"""Rewards that are models: small models of the real classes, loaded, preprocessed for and scored against slow references."""

import json
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from mmrl.core.types import Group, Prompt, Sample, Scored
from mmrl.lab.tiny.flow.pipeline_parts import clip_tokenizer
from mmrl.lab.tiny.text.vlms import byte_tokenizer, chat_template
from mmrl.lab.tiny.tokenizer import QWEN_TOKENS
from mmrl.serving.scorers import encoders, models

MEAN, STD = torch.tensor([0.48145466, 0.4578275, 0.40821073]), torch.tensor([0.26862954, 0.26130258, 0.27577711])


def picture(seed=0, size=(90, 60)):
    """Smooth colours and a hard edge, so that interpolation and cropping show."""
    y, x = np.mgrid[: size[1], : size[0]]
    rng = np.random.default_rng(seed)
    waves = [127 + 120 * np.sin(rng.uniform(0.05, 0.4) * x + rng.uniform(0.05, 0.4) * y + seed) for _ in range(3)]
    array = np.stack(waves, -1)
    array[: size[1] // 3, : size[0] // 3] = rng.integers(0, 256, 3)
    return Image.fromarray(array.astype(np.uint8))


def group(text, *images, **columns):
    return Group(0, Prompt("p7", text, columns=columns), tuple(Sample(image=image) for image in images))


def numbers(scores) -> list[Any]:
    return [score.value if isinstance(score, Scored) else score for score in scores]


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(torch.tensor(a), torch.tensor(b), atol=tolerance, rtol=tolerance)


def by_pil(image, side, mean=MEAN, std=STD, crop=True):
    """Shorter side to `side` bicubically by PIL (or all squashed), middle, normalized."""
    width, height = image.size
    if crop:
        share = side / min(width, height)
        width, height = int(width * share), int(height * share)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        left, top = (width - side) // 2, (height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    else:
        image = image.resize((side, side), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255)
    return ((pixels - mean) / std).permute(2, 0, 1)


@pytest.fixture(autouse=True)
def fresh():
    models.release()
    yield
    models.release()


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    """A CLIPModel of 28 pixels with tokenizer and preprocessing of its own."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    folder, tokenizer = tmp_path_factory.mktemp("clip"), clip_tokenizer()
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    text = {**small, **ids, "vocab_size": len(tokenizer), "max_position_embeddings": 24}
    torch.manual_seed(0)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config={**small, "image_size": 28, "patch_size": 7}, projection_dim=16))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.2)
        model.logit_scale.fill_(np.log(100.0))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 28}, crop_size=28).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def siglip_folder(tmp_path_factory):
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel

    folder, tokenizer = tmp_path_factory.mktemp("siglip"), byte_tokenizer({})
    small = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**small, "vocab_size": len(tokenizer), "max_position_embeddings": 16}
    torch.manual_seed(0)
    model = SiglipModel(SiglipConfig(text_config=text, vision_config={**small, "image_size": 28, "patch_size": 14}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    SiglipImageProcessor(size={"height": 28, "width": 28}).save_pretrained(folder)
    return folder


OPEN_CLIP = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 28, "layers": 2, "width": 32, "head_width": 16, "patch_size": 7},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}


@pytest.fixture(scope="module")
def open_clip_folder(tmp_path_factory):
    """A folder as open_clip saves it to the hub; also the architecture alone, and a checkpoint as HPSv2 has it."""
    import open_clip
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("open_clip")
    torch.manual_seed(1)
    model = open_clip.CLIP(OPEN_CLIP["embed_dim"], OPEN_CLIP["vision_cfg"], OPEN_CLIP["text_cfg"])
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    preprocess = {"mean": MEAN.tolist(), "std": STD.tolist(), "interpolation": "bicubic", "resize_mode": "shortest"}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": OPEN_CLIP, "preprocess_cfg": preprocess}))
    (folder / "small-vit.json").write_text(json.dumps(OPEN_CLIP))
    torch.save({"epoch": 3, "state_dict": model.state_dict()}, folder / "HPS_v2.1_compressed.pt")
    return folder


def clip_cosines(folder, images, text):
    """One picture at a time, through plain transformers."""
    from transformers import CLIPModel

    model = CLIPModel.from_pretrained(folder).eval()
    tokens = clip_tokenizer()(text, return_tensors="pt", truncation=True, max_length=24)
    with torch.no_grad():
        direction = model.text_projection(model.text_model(**tokens).pooler_output)[0]
        seen = [model.visual_projection(model.vision_model(by_pil(image, 28)[None]).pooler_output)[0] for image in images]
    return [float(nn.functional.cosine_similarity(one, direction, dim=0)) for one in seen]


IMAGES = [picture(0), picture(1, (60, 90)), picture(2, (64, 64))]


def test_clip_score_is_the_cosine_of_published_preprocessing(reward, clip_folder):
    scores = reward("clip_score", model=str(clip_folder))(group("a fox", *IMAGES))
    expected = clip_cosines(clip_folder, IMAGES, "a fox")
    close(numbers(scores), expected)
    assert len({round(value, 3) for value in expected}) == 3
    (paper, *_) = reward("clip_score", model=str(clip_folder), form="paper")(group("a fox", *IMAGES))
    close(paper.value, 2.5 * max(0.0, clip_cosines(clip_folder, IMAGES[:1], "A photo depicts a fox")[0]))


def test_a_long_prompt_is_cut_and_counted(reward, clip_folder):
    score = reward("clip_score", model=str(clip_folder))
    assert [one.parts["cut_prompt"] for one in score(group("a fox", *IMAGES))] == [0, 0, 0]
    (cut,) = score(group("a fox " * 9, IMAGES[0]))
    assert cut.parts["cut_prompt"] == 1
    close([cut.value], clip_cosines(clip_folder, IMAGES[:1], "a fox " * 9))


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("clip_score", "clip_folder"),
        ("pick_score", "clip_folder"),
        ("clip_score", "siglip_folder"),
        ("clip_score", "open_clip_folder"),
        ("hps_v2", "open_clip_folder"),
        ("image_reward", "image_reward_folder"),
        ("hps_v3", "hps_v3_folder"),
        ("vqa_score", "vlm_folder"),
        ("aesthetic", "clip_folder"),
    ],
)
def test_batches_order_and_prompts_do_not_mix(name, where, reward, request):
    folder = request.getfixturevalue(where)
    fields = {
        "pick_score": {"model": str(folder), "processor": ""},
        "hps_v2": {"checkpoint": str(folder), "architecture": str(folder / "small-vit.json")},
        "image_reward": {"checkpoint": str(folder), "tokenizer": str(folder)},
        "hps_v3": {"checkpoint": str(folder), "base": str(folder), "pixels": 56 * 56},
        "aesthetic": {"model": str(folder), "head": str(folder / "head.pth")},
    }.get(name, {"model": f"open_clip:local-dir:{folder}" if where == "open_clip_folder" else str(folder)})
    if name == "aesthetic":
        write_head(folder / "head.pth", 16)
    scored = reward(name, batch_size=2, **fields)
    together = numbers(scored(group("a fox", *IMAGES)))
    close(numbers(scored(group("a fox", *IMAGES[::-1]))), together[::-1])
    close([numbers(scored(group("a fox", image)))[0] for image in IMAGES], together)
    assert len({round(value, 6) for value in together}) == 3, "pictures are told apart"
    if name != "aesthetic":
        other = numbers(scored(group("two dogs", *IMAGES)))
        assert max(abs(a - b) for a, b in zip(together, other, strict=True)) > 1e-6, "the prompt is read"
    copied = pickle.loads(pickle.dumps(scored))  # noqa: S301 - our own bytes: rewards must survive the way to a process
    assert numbers(copied(group("a fox", *IMAGES))) == together
    transparent = [image.convert("RGBA") for image in IMAGES]
    close(numbers(scored(group("a fox", *transparent))), together)


def test_pick_score_has_a_temperature_a_scale_and_a_processor_of_its_own(reward, clip_folder, tmp_path):
    import shutil

    expected = clip_cosines(clip_folder, IMAGES, "a fox")
    bare, parts = tmp_path / "bare", tmp_path / "processor"
    shutil.copytree(clip_folder, bare, ignore=shutil.ignore_patterns("*processor*", "*token*", "*vocab*", "*merges*"))
    shutil.copytree(clip_folder, parts, ignore=shutil.ignore_patterns("*.safetensors"))
    raw = reward("pick_score", model=str(bare), processor=str(parts))(group("a fox", *IMAGES))
    close(numbers(raw), [100 * cosine for cosine in expected], 1e-3)
    scaled = reward("pick_score", model=str(bare), processor=str(parts), scale=8.0, shift=18.0)(group("a fox", *IMAGES))
    close(numbers(scaled), [(100 * cosine - 18) / 8 for cosine in expected], 1e-3)
    assert raw[0].parts["raw"] == scaled[0].parts["raw"]
    with pytest.raises(ValueError, match="it must be above 0"):
        reward("pick_score", scale=0.0)


def test_siglip_is_squashed_centred_and_padded(siglip_folder):
    encoder = encoders.encoder_of(str(siglip_folder))
    half = torch.full((3,), 0.5)
    close(encoder.pixels([IMAGES[0]])[0].tolist(), by_pil(IMAGES[0], 28, half, half, crop=False).tolist(), 1e-6)
    assert encoder.tokens(["a", "a fox"]).tokens["input_ids"].shape == (2, 16)
    assert set(encoder.tokens(["a"]).tokens) == {"input_ids"}


def test_open_clip_uses_its_own_transform_and_tokenizer(open_clip_folder):
    import open_clip

    encoder = encoders.encoder_of(f"open_clip:local-dir:{open_clip_folder}")
    close(encoder.pixels([IMAGES[0]])[0].tolist(), by_pil(IMAGES[0], 28).tolist(), 1e-6)
    assert encoder.tokens(["a fox"]).tokens["text"].tolist() == open_clip.tokenize(["a fox"]).tolist()
    assert encoder.tokens(["a fox", "fox " * 75, "fox " * 76]).cut == [False, False, True]


def test_hps_v2_keeps_the_shape_between_black_bars(reward, open_clip_folder):
    """90 x 60 becomes 28 x 19: 4 black rows above and 5 below, black before normalizing."""
    scored = reward("hps_v2", checkpoint=str(open_clip_folder), architecture=str(open_clip_folder / "small-vit.json"))
    encoder = scored.encoder()
    pixels = encoder.pixels([IMAGES[0]])[0]
    black = (-MEAN / STD)[:, None, None]
    assert pixels.shape == (3, 28, 28)
    assert torch.allclose(pixels[:, :4], black.expand(3, 4, 28)) and torch.allclose(pixels[:, 23:], black.expand(3, 5, 28))
    assert not torch.allclose(pixels[:, 4:23], black.expand(3, 19, 28))
    tall = encoder.pixels([IMAGES[1]])[0]
    assert torch.allclose(tall[:, :, :4], black.expand(3, 28, 4)) and torch.allclose(tall[:, :, 23:], black.expand(3, 28, 5))
    # a picture of the right size already is only normalized
    exact = picture(3, (28, 28))
    expected = torch.from_numpy(np.asarray(exact, dtype=np.float32) / 255)
    torch.testing.assert_close(encoder.pixels([exact])[0], ((expected - MEAN) / STD).permute(2, 0, 1), atol=1e-6, rtol=0)
    with encoder.held.ready() as model, torch.no_grad():
        cosine = nn.functional.cosine_similarity(
            model.encode_image(pixels[None]), model.encode_text(encoder.tokenizer(["a fox"]))
        )
    close(numbers(scored(group("a fox", IMAGES[0]))), cosine.tolist())


def write_head(file, width, seed=0, prefix="layers"):
    """Five linear layers, numbered as LAION numbers them; returns the slow predictor."""
    torch.manual_seed(seed)
    sizes, places = (width, 1024, 128, 64, 16, 1), (0, 2, 4, 6, 7)
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    state = {f"{prefix}.{i}.{k}": v for i, layer in zip(places, layers, strict=True) for k, v in layer.state_dict().items()}
    torch.save(state, file)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("version", ["v2", "v2.5"])
def test_aesthetic_is_the_head_on_unit_features(version, reward, clip_folder, siglip_folder, tmp_path):
    from transformers import CLIPModel, SiglipModel

    if version == "v2":
        model, folder = CLIPModel.from_pretrained(clip_folder).eval(), clip_folder
        pixels = torch.stack([by_pil(image, 28) for image in IMAGES])
    else:
        model, folder = SiglipModel.from_pretrained(siglip_folder).eval(), siglip_folder
        pixels = torch.stack([by_pil(image, 28, torch.full((3,), 0.5), torch.full((3,), 0.5), crop=False) for image in IMAGES])
    with torch.no_grad():
        features: Any = getattr(model.get_image_features(pixels), "pooler_output")  # noqa: B009 - pyright thinks it a tuple
        prefix = "layers" if version == "v2" else "scoring_head"
        slow = write_head(tmp_path / "head.pth", features.shape[1], prefix=prefix)
        expected = slow(features / features.norm(dim=-1, keepdim=True))[:, 0]
    settings = {"version": version, "model": str(folder), "head": str(tmp_path / "head.pth")}
    scores = reward("aesthetic", **settings)(group("whatever", *IMAGES))
    close(numbers(scores), expected.tolist())
    close(numbers(reward("aesthetic", scale=10.0, **settings)(group("x", *IMAGES))), (expected / 10).tolist())
    write_head(tmp_path / "wide.pth", 99)
    with pytest.raises(ValueError, match="reads 99 features"):
        reward("aesthetic", **{**settings, "head": str(tmp_path / "wide.pth")})(group("x", IMAGES[0]))
    with pytest.raises(ValueError, match="activations"):
        reward("aesthetic", head="sac+logos+ava1-l14-reluMSE.pth")
    with pytest.raises(FileNotFoundError, match=r"linearMSE\.pth"):
        reward("aesthetic")(group("x", IMAGES[0]))


@pytest.fixture(scope="module")
def image_reward_parts():
    """The classes it is made of, at a small size, and its last layers."""
    from transformers import BlipTextConfig, BlipVisionConfig, BlipVisionModel
    from transformers.models.blip.modeling_blip_text import BlipTextModel

    torch.manual_seed(2)
    small: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2}
    vision = BlipVisionModel(
        BlipVisionConfig(hidden_size=128, intermediate_size=64, image_size=28, patch_size=14, layer_norm_eps=1e-6, **small)
    )
    text = BlipTextModel(
        BlipTextConfig(vocab_size=300, hidden_size=32, intermediate_size=48, encoder_hidden_size=128, is_decoder=True, **small),
        add_pooling_layer=False,
    )
    for part in (vision, text):
        for weight in part.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, 0, 0.2)
    sizes = (32, 1024, 128, 64, 16, 1)
    head = nn.Sequential(*[nn.Linear(a, b) for a, b in pairwise(sizes)])
    return vision.eval(), text.eval(), head


@pytest.fixture(scope="module")
def image_reward_folder(image_reward_parts, tmp_path_factory):
    """A checkpoint with the names of ImageReward.pt."""
    vision, text, head = image_reward_parts
    folder, state = tmp_path_factory.mktemp("image_reward"), {}
    backwards = {
        "embeddings.class_embedding": "cls_token",
        "embeddings.position_embedding": "pos_embed",
        "embeddings.patch_embedding.weight": "patch_embed.proj.weight",
        "embeddings.patch_embedding.bias": "patch_embed.proj.bias",
        "post_layernorm.weight": "norm.weight",
        "post_layernorm.bias": "norm.bias",
    }
    layer = {
        "self_attn.qkv": "attn.qkv",
        "self_attn.projection": "attn.proj",
        "layer_norm1": "norm1",
        "layer_norm2": "norm2",
        "mlp.fc1": "mlp.fc1",
        "mlp.fc2": "mlp.fc2",
    }
    for key, value in vision.state_dict().items():
        if key in backwards:
            state[f"blip.visual_encoder.{backwards[key]}"] = value
        else:
            _, _, number, rest = key.split(".", 3)
            part, _, kind = rest.rpartition(".")
            state[f"blip.visual_encoder.blocks.{number}.{layer[part]}.{kind}"] = value
    state |= {f"blip.text_encoder.{key}": value for key, value in text.state_dict().items()}
    state["blip.text_encoder.embeddings.position_ids"] = torch.arange(512)[None]
    state["blip.vision_proj.weight"] = torch.zeros(4, 4)
    for place, linear in zip((0, 2, 4, 6, 7), head, strict=True):
        state |= {f"mlp.layers.{place}.{key}": value for key, value in linear.state_dict().items()}
    torch.save(state, folder / "ImageReward.pt")
    med = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 7,
        "encoder_width": 768,
    }
    (folder / "med_config.json").write_text(json.dumps(med))
    byte_tokenizer({}).save_pretrained(folder)
    return folder


def test_image_reward_is_blip_and_its_head(reward, image_reward_parts, image_reward_folder):
    vision, text, head = image_reward_parts
    tokenizer = byte_tokenizer({})
    tokenizer.padding_side = "right"
    long = "a fox in the snow under a very large tree"
    for prompt in ("a fox", long):
        tokens = tokenizer(prompt, padding="max_length", truncation=True, max_length=35, return_tensors="pt")
        expected = []
        with torch.no_grad():
            for image in IMAGES:
                seen = vision(by_pil(image, 28)[None]).last_hidden_state
                read = text(
                    **{k: tokens[k] for k in ("input_ids", "attention_mask")}, encoder_hidden_states=seen, is_decoder=False
                )
                expected.append(float((head(read.last_hidden_state[0, 0]) - 0.16717362830052426) / 1.0333394966054072))
        tokenizer_folder = image_reward_folder / "tokenizer"
        tokenizer.save_pretrained(tokenizer_folder)
        scores = reward("image_reward", checkpoint=str(image_reward_folder), tokenizer=str(tokenizer_folder))(
            group(prompt, *IMAGES)
        )
        close(numbers(scores), expected, 1e-4)
        assert [score.parts["cut_prompt"] for score in scores] == [float(prompt == long)] * 3


@pytest.fixture(scope="module")
def hps_v3_folder(tmp_path_factory):
    """Configuration and processor of a small Qwen2-VL, and a checkpoint with the names of HPSv3.safetensors."""
    from safetensors.torch import save_file
    from transformers import (
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        Qwen2VLImageProcessor,
        Qwen2VLProcessor,
        Qwen2VLVideoProcessor,
    )

    folder, tokenizer = tmp_path_factory.mktemp("hps_v3"), byte_tokenizer(QWEN_TOKENS)
    ids = {f"{name}_id": tokenizer.convert_tokens_to_ids(token) for name, token in QWEN_TOKENS.items()}
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
        **{name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2}
    torch.manual_seed(3)
    config: Any = Qwen2VLConfig(text_config=text, vision_config=vision, **ids)
    size = {"shortest_edge": 28 * 28, "longest_edge": 112 * 112}
    shared = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "size": size}
    start, middle, end = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
    Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(**shared),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(**shared),
        chat_template=chat_template(start + middle + end),
    ).save_pretrained(folder)
    config.save_pretrained(folder)
    config.text_config.vocab_size += 1
    model = Qwen2VLForConditionalGeneration(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.3)
    head = nn.Sequential(nn.Linear(32, 1024), nn.ReLU(), nn.Dropout(0.05), nn.Linear(1024, 16), nn.ReLU(), nn.Linear(16, 2))
    state = {}
    for key, value in model.state_dict().items():
        old = key.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
        state[old] = value.clone()
    state |= {f"rm_head.{key}": value for key, value in head.state_dict().items()}
    assert any(key.startswith("visual.") for key in state) and "model.embed_tokens.weight" in state
    save_file(state, folder / "HPSv3.safetensors")
    torch.save((model.state_dict(), head.state_dict()), folder / "parts.pt")
    return folder


def test_hps_v3_reads_the_head_at_the_reward_token(reward, hps_v3_folder):
    from transformers import AutoProcessor, Qwen2VLConfig, Qwen2VLForConditionalGeneration

    template = "Rate: {prompt} <|Reward|>"
    scored = reward("hps_v3", checkpoint=str(hps_v3_folder), base=str(hps_v3_folder), template=template, pixels=56 * 56)
    (score,) = scored(group("a fox", IMAGES[0]))
    config: Any = Qwen2VLConfig.from_pretrained(hps_v3_folder)
    config.text_config.vocab_size += 1
    model = Qwen2VLForConditionalGeneration(config).eval()
    head = nn.Sequential(
        nn.Linear(32, 1024), nn.ReLU(), nn.Dropout(0.05), nn.Linear(1024, 16), nn.ReLU(), nn.Linear(16, 2)
    ).eval()
    states = torch.load(hps_v3_folder / "parts.pt")
    model.load_state_dict(states[0])
    head.load_state_dict(states[1])
    processor = AutoProcessor.from_pretrained(hps_v3_folder)
    processor.tokenizer.add_tokens(["<|Reward|>"], special_tokens=True)
    text = (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Rate: a fox <|Reward|><|im_end|>\n<|im_start|>assistant\n"
    )
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    height, width = smart_resize(60, 90, 28, 56 * 56, 56 * 56)
    image = IMAGES[0].resize((width, height), Image.Resampling.BICUBIC)
    inputs = processor(text=[text], images=[image], return_tensors="pt")
    count = inputs["input_ids"].shape[1]
    with torch.no_grad():
        hidden = model.model(**inputs, position_ids=torch.arange(count).expand(3, 1, count)).last_hidden_state
    mark = inputs["input_ids"][0].tolist().index(len(processor.tokenizer) - 1)
    with torch.no_grad():
        mean, sigma = head(hidden[0, mark]).tolist()
    close([score.value, score.parts["sigma"]], [mean, sigma], 1e-4)
    with pytest.raises(ValueError, match="must end with"):
        reward("hps_v3", checkpoint=str(hps_v3_folder), base=str(hps_v3_folder), template="Rate: {prompt}")(group("a", IMAGES[0]))


@pytest.fixture(scope="module")
def vlm_folder(tmp_path_factory):
    """A small vision-language model whose tokenizer has Yes and No."""
    from mmrl.lab.tiny.text import vlms

    folder = tmp_path_factory.mktemp("vlm")
    torch.manual_seed(0)
    model, processor = vlms.qwen2_5_vl()
    processor.tokenizer.add_tokens(["Yes", "No", "yes"])
    model.resize_token_embeddings(len(processor.tokenizer), mean_resizing=False)
    vlms.draw_weights(model)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def test_vqa_score_adds_up_spellings_of_yes(reward, vlm_folder):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model, processor = AutoModelForImageTextToText.from_pretrained(vlm_folder).eval(), AutoProcessor.from_pretrained(vlm_folder)
    question = 'Does this figure show "a fox"? Please answer Yes or No.'
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
    inputs = processor(
        text=processor.apply_chat_template(turn, add_generation_prompt=True), images=[IMAGES[0]], return_tensors="pt"
    )
    with torch.no_grad():
        shares = model(**inputs).logits[0, -1].softmax(-1)
    yes, no = (
        sum(float(shares[processor.tokenizer.convert_tokens_to_ids(w)]) for w in words) for words in (("Yes", "yes"), ("No",))
    )
    (alone,) = reward("vqa_score", model=str(vlm_folder))(group("a fox", IMAGES[0]))
    (both,) = reward("vqa_score", model=str(vlm_folder), among_both=True)(group("a fox", IMAGES[0]))
    close([alone.value, both.value], [yes, yes / (yes + no)])


def test_one_model_serves_equal_rewards(reward, clip_folder, monkeypatch):
    built = []
    real = models.load_pretrained
    monkeypatch.setattr(encoders, "load_pretrained", lambda *a, **k: built.append(a) or real(*a, **k))
    for name, fields in (("clip_score", {}), ("clip_score", {"form": "paper"}), ("pick_score", {"processor": ""})):
        reward(name, model=str(clip_folder), **fields)(group("a fox", IMAGES[0]))
    assert len(built) == 1


def test_a_run_may_move_the_weights_between_steps(reward, clip_folder):
    scored = reward("clip_score", model=str(clip_folder), device="cpu")
    before = numbers(scored(group("a fox", *IMAGES)))
    held = encoders.encoder_of(str(clip_folder), device="cpu").held
    scored.to("meta")
    assert held.device.type == "meta" == next(held.model.parameters()).device.type
    models.release()
    scored.to("cpu")
    assert numbers(scored(group("a fox", *IMAGES))) == before


def test_scores_do_not_touch_gradients_or_random_numbers(reward, clip_folder):
    scored = reward("clip_score", model=str(clip_folder))
    scored(group("a fox", IMAGES[0]))
    held = encoders.encoder_of(str(clip_folder)).held
    assert not any(weight.requires_grad for weight in held.model.parameters()) and not held.model.training
    after = torch.get_rng_state()
    scored(group("a fox", IMAGES[0]))
    assert torch.equal(after, torch.get_rng_state())


# ---- mistakes


def test_a_missing_model_is_one_sentence(reward):
    for name, fields in (
        ("clip_score", {"model": "nobody/no-such-clip"}),
        ("pick_score", {"model": "nobody/no-such-clip"}),
        ("hps_v2", {"checkpoint": "nobody/no-such-clip"}),
        ("image_reward", {"checkpoint": "nobody/no-such-blip"}),
        ("hps_v3", {"base": "nobody/no-such-qwen"}),
        ("vqa_score", {"model": "nobody/no-such-vlm"}),
        ("object_counts", {"detector": "nobody/no-such-detector"}),
    ):
        columns = {"include": [{"class": "cat", "count": 1}]} if name == "object_counts" else {}
        with pytest.raises(
            FileNotFoundError, match=r"'nobody/no-such-\w+' is neither a folder.*hub gave us: check the name"
        ) as caught:
            reward(name, **fields)(group("a fox", IMAGES[0], **columns))
        assert "\n" not in str(caught.value), name


def test_a_missing_package_is_one_sentence(reward, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs the package 'open_clip'.*pip install open_clip_torch"):
        reward("clip_score", model="open_clip:ViT-B-32/openai")(group("a fox", IMAGES[0]))


def test_checkpoints_of_another_architecture_are_refused_with_names(
    reward, clip_folder, open_clip_folder, image_reward_folder, siglip_folder, tmp_path
):
    from safetensors.torch import load_file, save_file

    small = json.loads((open_clip_folder / "small-vit.json").read_text())
    small["vision_cfg"]["layers"] = 3
    (tmp_path / "deeper.json").write_text(json.dumps(small))
    with pytest.raises(ValueError, match=r"weights of the class CLIP: tensors 12 missing \(visual\.transformer\.resblocks\.2"):
        reward("hps_v2", checkpoint=str(open_clip_folder), architecture=str(tmp_path / "deeper.json"))(group("x", IMAGES[0]))
    small["vision_cfg"]["layers"] = 1
    (tmp_path / "shallower.json").write_text(json.dumps(small))
    with pytest.raises(ValueError, match=r"tensors 12 unexpected \(visual\.transformer\.resblocks\.1"):
        reward("hps_v2", checkpoint=str(open_clip_folder), architecture=str(tmp_path / "shallower.json"))(group("x", IMAGES[0]))
    with pytest.raises(ValueError, match="does not encode pictures and texts"):
        from transformers import BertConfig, BertModel

        tiny = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
        BertModel(tiny).save_pretrained(tmp_path / "bert")
        reward("clip_score", model=str(tmp_path / "bert"))(group("x", IMAGES[0]))
    torch.save({"visual.proj": torch.zeros(2)}, tmp_path / "ImageReward.pt")
    (tmp_path / "med_config.json").write_text("{}")
    with pytest.raises(ValueError, match="another architecture than ImageReward"):
        reward("image_reward", checkpoint=str(tmp_path), tokenizer=str(image_reward_folder))(group("x", IMAGES[0]))
    import shutil

    cut = shutil.copytree(clip_folder, tmp_path / "cut")
    weights = load_file(cut / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "visual_projection" not in k}, cut / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"the weights of the class CLIPModel: tensors 1 missing \(visual_projection\.weight\)"):
        reward("clip_score", model=str(cut))(group("x", IMAGES[0]))


@pytest.mark.parametrize("kind", ["transformers", "open_clip", "hps_v2"])
def test_weights_that_are_cut_or_not_finite_are_refused(reward, clip_folder, open_clip_folder, tmp_path, kind):
    import shutil

    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(clip_folder if kind == "transformers" else open_clip_folder, tmp_path / "model")
    file = folder / ("model.safetensors" if kind == "transformers" else "open_clip_model.safetensors")
    weights = load_file(file)
    architecture = str(folder / "small-vit.json")
    scored = {
        "transformers": lambda: reward("clip_score", model=str(folder)),
        "open_clip": lambda: reward("clip_score", model=f"open_clip:local-dir:{folder}"),
        "hps_v2": lambda: reward("hps_v2", checkpoint=str(file), architecture=architecture),
    }[kind]
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"model\.safetensors is cut short or broken"):
        scored()(group("x", IMAGES[0]))
    name = next(name for name in weights if name.endswith("weight"))
    weights[name][0] = torch.inf
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"NaN or infinity in 1 tensors"):
        scored()(group("x", IMAGES[0]))
    save_file({**weights, "extra": torch.ones(1)}, file, {"format": "pt"})
    with pytest.raises(ValueError, match="extra"):
        scored()(group("x", IMAGES[0]))


def test_a_default_architecture_is_compared_before_its_weights_are_drawn(reward, open_clip_folder, caplog, monkeypatch):
    """ViT-H-14 has a billion weights, which take minutes to draw; what is about to be loaded is said first."""
    drawn: list[int] = []
    real = nn.init.normal_
    monkeypatch.setattr(nn.init, "normal_", lambda weight, *a, **k: (drawn.append(not weight.is_meta), real(weight, *a, **k))[1])
    caplog.set_level("INFO", logger="mmrl.loading")
    monkeypatch.setattr(models.loading, "propagate", True)
    with pytest.raises(ValueError, match=r"does not hold the weights of the class CLIP: .* missing"):
        reward("hps_v2", checkpoint=str(open_clip_folder))(group("x", IMAGES[0]))
    assert drawn and not any(drawn)
    assert "loading open_clip ViT-H-14 checkpoint" in caplog.text


def test_a_pickle_with_code_is_not_executed(reward, open_clip_folder, tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    (tmp_path / "HPS_v2.1_compressed.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match="cannot be read as tensors alone"):
        reward("hps_v2", checkpoint=str(tmp_path), architecture=str(open_clip_folder / "small-vit.json"))(group("x", IMAGES[0]))


def test_small_mistakes_are_named(reward, clip_folder, tmp_path):
    score = reward("clip_score", model=str(clip_folder))
    with pytest.raises(ValueError, match="'p7' has no picture"):
        score(Group(0, Prompt("p7", "x"), (Sample("words"),)))
    with pytest.raises(ValueError, match="device 'cuda:9'"):
        reward("clip_score", model=str(clip_folder), device="cuda:9")(group("x", IMAGES[0]))
    with pytest.raises(ValueError, match="device 'gpu' does not exist"):
        reward("clip_score", model=str(clip_folder), device="gpu")(group("x", IMAGES[0]))
    with pytest.raises(ValueError, match="batch_size is 0"):
        reward("clip_score", model=str(clip_folder), batch_size=0)(group("x", IMAGES[0]))
    with pytest.raises(FileNotFoundError, match=r"holds no HPS_v2\.1_compressed\.pt"):
        reward("hps_v2", checkpoint=str(tmp_path))(group("x", IMAGES[0]))
    torch.save({}, tmp_path / "HPS_v2_compressed.pt")
    with pytest.raises(ValueError, match="open_clip has no architecture 'ViT-Q-1'"):
        reward("hps_v2", checkpoint=str(tmp_path), version="2.0", architecture="ViT-Q-1")(group("x", IMAGES[0]))
    with pytest.raises(FileNotFoundError, match="neither a file nor a folder"):
        reward("hps_v2", checkpoint="./nowhere")(group("x", IMAGES[0]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_in_bfloat16_and_offloaded(reward, clip_folder):
    exact = numbers(reward("clip_score", model=str(clip_folder), device="cpu")(group("a fox", *IMAGES)))
    fields = {"model": str(clip_folder), "device": "cuda"}
    scored = reward("clip_score", **fields)
    close(numbers(scored(group("a fox", *IMAGES))), exact, 2e-2)
    weight = next(encoders.encoder_of(str(clip_folder), device="cuda").held.model.parameters())
    assert weight.dtype == torch.bfloat16 and weight.device.type == "cuda"
    scored.to("cpu")
    assert next(encoders.encoder_of(str(clip_folder), device="cuda").held.model.parameters()).device.type == "cpu"
    scored.to("cuda")
    close(numbers(scored(group("a fox", *IMAGES))), exact, 2e-2)
