"""Rewards that are models: small models of the real classes, loaded, preprocessed for and scored against slow references."""

import json
import pickle
import shutil
import sys
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from mmrl.core.types import Group, Prompt, Sample
from mmrl.lab.tiny import scorers
from mmrl.lab.tiny.byte_tokens import byte_tokenizer
from mmrl.lab.tiny.flow.pipeline_parts import clip_tokenizer
from mmrl.lab.tiny.text import vlms
from mmrl.lab.tiny.tokenizer import QWEN_TOKENS
from mmrl.serving.scorers import encoders, models
from tests.plugins.conftest import MEAN, STD, pictured, values
from tests.support.original_layout import renamed
from tests.support.refused import refused


def picture(seed=0, size=(90, 60)):
    """Smooth colours and a hard edge, so that interpolation and cropping show."""
    y, x = np.mgrid[: size[1], : size[0]]
    rng = np.random.default_rng(seed)
    waves = [127 + 120 * np.sin(rng.uniform(0.05, 0.4) * x + rng.uniform(0.05, 0.4) * y + seed) for _ in range(3)]
    array = np.stack(waves, -1)
    array[: size[1] // 3, : size[0] // 3] = rng.integers(0, 256, 3)
    return Image.fromarray(array.astype(np.uint8))


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


def clip_cosines(folder, images, text):
    """One picture at a time, through plain transformers."""
    from transformers import CLIPModel

    model = CLIPModel.from_pretrained(folder).eval()
    tokens = clip_tokenizer()(text, return_tensors="pt", truncation=True, max_length=77)
    with torch.no_grad():
        direction = model.text_projection(model.text_model(**tokens).pooler_output)[0]
        seen = [model.visual_projection(model.vision_model(by_pil(image, 28)[None]).pooler_output)[0] for image in images]
    return [float(nn.functional.cosine_similarity(one, direction, dim=0)) for one in seen]


IMAGES = [picture(0), picture(1, (60, 90)), picture(2, (64, 64))]
ONE = pictured("x", IMAGES[0])


def test_clip_score_is_the_cosine_of_published_preprocessing(reward, clip_folder):
    scores = reward("clip_score", model=str(clip_folder))(pictured("a fox", *IMAGES))
    expected = clip_cosines(clip_folder, IMAGES, "a fox")
    close(values(scores), expected)
    assert len({round(value, 3) for value in expected}) == 3
    (paper, *_) = reward("clip_score", model=str(clip_folder), form="paper")(pictured("a fox", *IMAGES))
    close(paper.value, 2.5 * max(0.0, clip_cosines(clip_folder, IMAGES[:1], "A photo depicts a fox")[0]))


def test_a_long_prompt_is_cut_and_counted(reward, clip_folder):
    score = reward("clip_score", model=str(clip_folder))
    assert [one.parts["cut_prompt"] for one in score(pictured("a fox", *IMAGES))] == [0, 0, 0]
    (cut,) = score(pictured("a fox " * 40, IMAGES[0]))
    assert cut.parts["cut_prompt"] == 1
    close([cut.value], clip_cosines(clip_folder, IMAGES[:1], "a fox " * 40))


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("clip_score", "clip_folder"), ("pick_score", "clip_folder"), ("clip_score", "siglip_folder"),
        ("clip_score", "open_clip_folder"), ("hps_v2", "open_clip_folder"), ("image_reward", "image_reward_folder"),
        ("hps_v3", "hps_v3_folder"), ("vqa_score", "vlm_folder"), ("aesthetic", "clip_folder"),
    ],
)  # fmt: skip
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
    together = values(scored(pictured("a fox", *IMAGES)))
    close(values(scored(pictured("a fox", *IMAGES[::-1]))), together[::-1])
    close([values(scored(pictured("a fox", image)))[0] for image in IMAGES], together)
    assert len({round(value, 6) for value in together}) == 3, "pictures are told apart"
    if name != "aesthetic":
        other = values(scored(pictured("two dogs", *IMAGES)))
        assert max(abs(a - b) for a, b in zip(together, other, strict=True)) > 1e-6, "the prompt is read"
    copied = pickle.loads(pickle.dumps(scored))  # noqa: S301 - our own bytes: rewards must survive the way to a process
    assert values(copied(pictured("a fox", *IMAGES))) == together
    transparent = [image.convert("RGBA") for image in IMAGES]
    close(values(scored(pictured("a fox", *transparent))), together)


def test_pick_score_has_a_temperature_a_scale_and_a_processor_of_its_own(reward, clip_folder, tmp_path):
    expected = clip_cosines(clip_folder, IMAGES, "a fox")
    bare, parts = tmp_path / "bare", tmp_path / "processor"
    shutil.copytree(clip_folder, bare, ignore=shutil.ignore_patterns("*processor*", "*token*", "*vocab*", "*merges*"))
    shutil.copytree(clip_folder, parts, ignore=shutil.ignore_patterns("*.safetensors"))
    raw = reward("pick_score", model=str(bare), processor=str(parts))(pictured("a fox", *IMAGES))
    close(values(raw), [100 * cosine for cosine in expected], 1e-3)
    scaled = reward("pick_score", model=str(bare), processor=str(parts), scale=8.0, shift=18.0)(pictured("a fox", *IMAGES))
    close(values(scaled), [(100 * cosine - 18) / 8 for cosine in expected], 1e-3)
    assert raw[0].parts["raw"] == scaled[0].parts["raw"]
    refused("it must be above 0", reward, "pick_score", scale=0.0)


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
    close(values(scored(pictured("a fox", IMAGES[0]))), cosine.tolist())


def write_head(file, width, seed=0, prefix="layers"):
    """Five linear layers of these names; returns the slow predictor."""
    torch.manual_seed(seed)
    layers = linears(width)
    torch.save(numbered(layers, prefix), file)
    return nn.Sequential(*layers)


def linears(width):
    return [nn.Linear(a, b) for a, b in pairwise((width, 1024, 128, 64, 16, 1))]


def numbered(layers, prefix):
    """Weights numbered as LAION numbers them."""
    places = (0, 2, 4, 6, 7)
    return {f"{prefix}.{i}.{k}": v for i, layer in zip(places, layers, strict=True) for k, v in layer.state_dict().items()}


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
    scores = reward("aesthetic", **settings)(pictured("whatever", *IMAGES))
    close(values(scores), expected.tolist())
    close(values(reward("aesthetic", scale=10.0, **settings)(pictured("x", *IMAGES))), (expected / 10).tolist())
    write_head(tmp_path / "wide.pth", 99)
    refused("reads 99 features", reward("aesthetic", **{**settings, "head": str(tmp_path / "wide.pth")}), ONE)
    refused("activations", reward, "aesthetic", head="sac+logos+ava1-l14-reluMSE.pth")
    refused(r"linearMSE\.pth", reward("aesthetic"), ONE, error=FileNotFoundError)


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
        scorers.draw_weights(part)
    return vision.eval(), text.eval(), nn.Sequential(*linears(32))


@pytest.fixture(scope="module")
def image_reward_folder(image_reward_parts, tmp_path_factory):
    """A checkpoint with the names of ImageReward.pt."""
    vision, text, head = image_reward_parts
    folder = tmp_path_factory.mktemp("image_reward")
    words = {"embeddings.class_embedding": "cls_token", "embeddings.position_embedding": "pos_embed", "encoder.layers": "blocks"}
    words |= {"embeddings.patch_embedding": "patch_embed.proj", "post_layernorm": "norm", "layer_norm": "norm"}
    words |= {"self_attn": "attn", "projection": "proj"}
    state = renamed(vision.state_dict(), words, "blip.visual_encoder.")
    state |= {f"blip.text_encoder.{key}": value for key, value in text.state_dict().items()}
    state["blip.text_encoder.embeddings.position_ids"] = torch.arange(512)[None]
    state["blip.vision_proj.weight"] = torch.zeros(4, 4)
    state |= numbered(head, "mlp.layers")
    torch.save(state, folder / "ImageReward.pt")
    med = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    med |= {"vocab_size": 7, "encoder_width": 768}
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
            pictured(prompt, *IMAGES)
        )
        close(values(scores), expected, 1e-4)
        assert [score.parts["cut_prompt"] for score in scores] == [float(prompt == long)] * 3


@pytest.fixture(scope="module")
def hps_v3_parts(tmp_path_factory):
    """A small Qwen2-VL with a token more than its tokenizer, and its last layers; with a checkpoint of HPSv3's names."""
    from safetensors.torch import save_file

    folder, tokenizer = tmp_path_factory.mktemp("hps_v3"), vlms.byte_tokenizer(QWEN_TOKENS)
    text = vlms.token_ids(tokenizer, rope_parameters=vlms.rope(1, 1, 2))
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2}
    torch.manual_seed(3)
    model = vlms.model_of("Qwen2VL", text_config=text, vision_config=vision, **vlms.qwen_ids(tokenizer))
    size = {"shortest_edge": 28 * 28, "longest_edge": 112 * 112}
    patches = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "size": size}
    vlms.processor_of("Qwen2VL", tokenizer, patches, chat_template=vlms.qwen_template()).save_pretrained(folder)
    model.config.save_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer) + 1, mean_resizing=False)
    scorers.draw_weights(model)
    head = nn.Sequential(nn.Linear(32, 1024), nn.ReLU(), nn.Dropout(0.05), nn.Linear(1024, 16), nn.ReLU(), nn.Linear(16, 2))
    state = renamed(model.state_dict(), {"model.visual.": "visual.", "model.language_model.": "model."})
    state |= {f"rm_head.{key}": value for key, value in head.state_dict().items()}
    assert any(key.startswith("visual.") for key in state) and "model.embed_tokens.weight" in state
    save_file({key: value.clone() for key, value in state.items()}, folder / "HPSv3.safetensors")
    return folder, model.eval(), head.eval()


@pytest.fixture(scope="module")
def hps_v3_folder(hps_v3_parts):
    return hps_v3_parts[0]


def test_hps_v3_reads_the_head_at_the_reward_token(reward, hps_v3_parts):
    from transformers import AutoProcessor
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    folder, model, head = hps_v3_parts
    settings = {"checkpoint": str(folder), "base": str(folder)}
    (score,) = reward("hps_v3", template="Rate: {prompt} <|Reward|>", pixels=56 * 56, **settings)(pictured("a fox", IMAGES[0]))
    processor = AutoProcessor.from_pretrained(folder)
    processor.tokenizer.add_tokens(["<|Reward|>"], special_tokens=True)
    asked = "<|vision_start|><|image_pad|><|vision_end|>Rate: a fox <|Reward|>"
    text = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
    height, width = smart_resize(60, 90, 28, 56 * 56, 56 * 56)
    image = IMAGES[0].resize((width, height), Image.Resampling.BICUBIC)
    inputs = processor(text=[text], images=[image], return_tensors="pt")
    count = inputs["input_ids"].shape[1]
    mark = inputs["input_ids"][0].tolist().index(len(processor.tokenizer) - 1)
    with torch.no_grad():
        hidden = model.model(**inputs, position_ids=torch.arange(count).expand(3, 1, count)).last_hidden_state
        mean, sigma = head(hidden[0, mark]).tolist()
    close([score.value, score.parts["sigma"]], [mean, sigma], 1e-4)
    refused("must end with", reward("hps_v3", template="Rate: {prompt}", **settings), ONE)


@pytest.fixture(scope="module")
def vlm_folder(tmp_path_factory):
    """A small vision-language model whose tokenizer has Yes and No."""
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
    (alone,) = reward("vqa_score", model=str(vlm_folder))(pictured("a fox", IMAGES[0]))
    (both,) = reward("vqa_score", model=str(vlm_folder), among_both=True)(pictured("a fox", IMAGES[0]))
    close([alone.value, both.value], [yes, yes / (yes + no)])


def test_one_model_serves_equal_rewards(reward, clip_folder, monkeypatch):
    built = []
    real = models.load_pretrained
    monkeypatch.setattr(encoders, "load_pretrained", lambda *a, **k: built.append(a) or real(*a, **k))
    for name, fields in (("clip_score", {}), ("clip_score", {"form": "paper"}), ("pick_score", {"processor": ""})):
        reward(name, model=str(clip_folder), **fields)(pictured("a fox", IMAGES[0]))
    assert len(built) == 1


def test_a_run_may_move_the_weights_between_steps(reward, clip_folder):
    scored = reward("clip_score", model=str(clip_folder), device="cpu")
    before = values(scored(pictured("a fox", *IMAGES)))
    held = encoders.encoder_of(str(clip_folder), device="cpu").held
    scored.to("meta")
    assert held.device.type == "meta" == next(held.model.parameters()).device.type
    models.release()
    scored.to("cpu")
    assert values(scored(pictured("a fox", *IMAGES))) == before


def test_scores_do_not_touch_gradients_or_random_numbers(reward, clip_folder):
    scored = reward("clip_score", model=str(clip_folder))
    scored(pictured("a fox", IMAGES[0]))
    held = encoders.encoder_of(str(clip_folder)).held
    assert not any(weight.requires_grad for weight in held.model.parameters()) and not held.model.training
    after = torch.get_rng_state()
    scored(pictured("a fox", IMAGES[0]))
    assert torch.equal(after, torch.get_rng_state())


# ---- mistakes


@pytest.mark.parametrize(
    ("name", "field"),
    [("clip_score", "model"), ("pick_score", "model"), ("hps_v2", "checkpoint"), ("image_reward", "checkpoint"),
     ("hps_v3", "base"), ("vqa_score", "model"), ("object_counts", "detector")],
)  # fmt: skip
def test_a_missing_model_is_one_sentence(reward, name, field):
    asked = pictured("a fox", IMAGES[0], include=[{"class": "cat", "count": 1}])
    words = r"'nobody/no-such-model' is neither a folder.*hub gave us: check the name"
    assert "\n" not in str(refused(words, reward(name, **{field: "nobody/no-such-model"}), asked, error=FileNotFoundError).value)


def test_a_missing_package_is_one_sentence(reward, monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    words = r"needs the package 'open_clip'.*pip install open_clip_torch"
    refused(words, reward("clip_score", model="open_clip:ViT-B-32/openai"), ONE, error=ModuleNotFoundError)


@pytest.mark.parametrize(("layers", "words"), [(3, r"12 missing \(v\S+resblocks\.2"), (1, r"12 unexpected \(v\S+resblocks\.1")])
def test_an_architecture_of_other_layers_is_refused_with_names(reward, open_clip_folder, tmp_path, layers, words):
    small = json.loads((open_clip_folder / "small-vit.json").read_text())
    small["vision_cfg"]["layers"] = layers
    (tmp_path / "other.json").write_text(json.dumps(small))
    scored = reward("hps_v2", checkpoint=str(open_clip_folder), architecture=str(tmp_path / "other.json"))
    refused(f"weights of the class CLIP: tensors {words}", scored, ONE)


def test_checkpoints_of_another_class_are_refused_with_names(reward, clip_folder, image_reward_folder, tmp_path):
    from safetensors.torch import load_file, save_file
    from transformers import BertConfig, BertModel

    tiny = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(tiny).save_pretrained(tmp_path / "bert")
    refused("does not encode pictures and texts", reward("clip_score", model=str(tmp_path / "bert")), ONE)
    torch.save({"visual.proj": torch.zeros(2)}, tmp_path / "ImageReward.pt")
    (tmp_path / "med_config.json").write_text("{}")
    scored = reward("image_reward", checkpoint=str(tmp_path), tokenizer=str(image_reward_folder))
    refused("another architecture than ImageReward", scored, ONE)
    cut = shutil.copytree(clip_folder, tmp_path / "cut")
    weights = load_file(cut / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "visual_projection" not in k}, cut / "model.safetensors", {"format": "pt"})
    words = r"the weights of the class CLIPModel: tensors 1 missing \(visual_projection\.weight\)"
    refused(words, reward("clip_score", model=str(cut)), ONE)


@pytest.mark.parametrize("kind", ["transformers", "open_clip", "hps_v2"])
def test_weights_that_are_cut_or_not_finite_are_refused(reward, clip_folder, open_clip_folder, tmp_path, kind):
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
    refused(r"model\.safetensors is cut short or broken", scored(), ONE)
    name = next(name for name in weights if name.endswith("weight"))
    weights[name][0] = torch.inf
    save_file(weights, file, {"format": "pt"})
    refused(r"NaN or infinity in 1 tensors", scored(), ONE)
    save_file({**weights, "extra": torch.ones(1)}, file, {"format": "pt"})
    refused("extra", scored(), ONE)


def test_a_default_architecture_is_compared_before_its_weights_are_drawn(reward, open_clip_folder, caplog, monkeypatch):
    """ViT-H-14 has a billion weights, which take minutes to draw; what is about to be loaded is said first."""
    drawn: list[int] = []
    real = nn.init.normal_
    monkeypatch.setattr(nn.init, "normal_", lambda weight, *a, **k: (drawn.append(not weight.is_meta), real(weight, *a, **k))[1])
    caplog.set_level("INFO", logger="mmrl.loading")
    monkeypatch.setattr(models.loading, "propagate", True)
    words = r"does not hold the weights of the class CLIP: .* missing"
    refused(words, reward("hps_v2", checkpoint=str(open_clip_folder)), ONE)
    assert drawn and not any(drawn)
    assert "loading open_clip ViT-H-14 checkpoint" in caplog.text


def test_a_pickle_with_code_is_not_executed(reward, open_clip_folder, tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    (tmp_path / "HPS_v2.1_compressed.pt").write_bytes(pickle.dumps(Evil()))
    scored = reward("hps_v2", checkpoint=str(tmp_path), architecture=str(open_clip_folder / "small-vit.json"))
    refused("cannot be read as tensors alone", scored, ONE)


def test_small_mistakes_are_named(reward, clip_folder, tmp_path):
    score = partial(reward, "clip_score", model=str(clip_folder))
    refused("'p7' has no picture", score(), Group(0, Prompt("p7", "x"), (Sample("words"),)))
    refused("device 'cuda:9'", score(device="cuda:9"), ONE)
    refused("device 'gpu' does not exist", score(device="gpu"), ONE)
    refused("batch_size is 0", score, batch_size=0)
    refused(r"holds no HPS_v2\.1_comp", reward("hps_v2", checkpoint=str(tmp_path)), ONE, error=FileNotFoundError)
    torch.save({}, tmp_path / "HPS_v2_compressed.pt")
    scored = reward("hps_v2", checkpoint=str(tmp_path), version="2.0", architecture="ViT-Q-1")
    refused("open_clip has no architecture 'ViT-Q-1'", scored, ONE)
    refused("neither a file nor a folder", reward("hps_v2", checkpoint="./nowhere"), ONE, error=FileNotFoundError)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_in_bfloat16_and_offloaded(reward, clip_folder):
    exact = values(reward("clip_score", model=str(clip_folder), device="cpu")(pictured("a fox", *IMAGES)))
    fields = {"model": str(clip_folder), "device": "cuda"}
    scored = reward("clip_score", **fields)
    close(values(scored(pictured("a fox", *IMAGES))), exact, 2e-2)
    weight = next(encoders.encoder_of(str(clip_folder), device="cuda").held.model.parameters())
    assert weight.dtype == torch.bfloat16 and weight.device.type == "cuda"
    scored.to("cpu")
    assert next(encoders.encoder_of(str(clip_folder), device="cuda").held.model.parameters()).device.type == "cpu"
    scored.to("cuda")
    close(values(scored(pictured("a fox", *IMAGES))), exact, 2e-2)
