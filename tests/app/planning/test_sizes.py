"""`mmrl plan` of published sizes: models of billions of weights, from config files alone, on the cards that the configs name."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.app.commands.plan import Plan, draw_up
from mmrl.app.config import run as configs
from mmrl.app.planning.memory import GIB, advice
from mmrl.policies.text.dry_run import TextDryRun
from mmrl.policies.text.templates import ANSWER_FORMATS
from mmrl.tiny import vlms
from mmrl.tiny.tokenizer import CHAT_TEMPLATE, qwen_tokenizer

QUESTION = "Where is the second person from the left in the blue jacket?"
QWEN25 = {
    "vision_config": {
        **{"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "window_size": 112},
        **{"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "fullatt_block_indexes": [7, 15, 23, 31]},
    },
    "text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}},
}
QWEN3 = {
    "vision_config": {
        **{"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "num_position_embeddings": 2304},
        **{"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "deepstack_visual_indexes": [5, 11, 17]},
    },
    "text_config": {
        "head_dim": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True},
    },
}


def sizes(hidden: int, inner: int, layers: int, heads: int, pairs: int, vocabulary: int, tied: bool) -> dict[str, Any]:
    attention = {"num_attention_heads": heads, "num_key_value_heads": pairs, "tie_word_embeddings": tied}
    rest = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": vocabulary}
    return {**rest, **attention, "max_position_embeddings": 128000}


TEXT: dict[str, tuple[str, dict[str, Any], dict[str, Any], float]] = {
    "qwen25_3b": ("qwen2_5_vl", QWEN25, sizes(2048, 11008, 36, 16, 2, 151936, True), 3.755e9),
    "qwen25_7b": ("qwen2_5_vl", QWEN25, sizes(3584, 18944, 28, 28, 4, 152064, False), 8.292e9),
    "qwen3_4b": ("qwen3_vl", QWEN3, sizes(2560, 9728, 36, 32, 8, 151936, True), 4.438e9),
}
"""Name -> family, its towers, its language model, and how many weights the published one has."""


def vlm(folder: Path, name: str) -> Path:
    """Config and processor of a model; pictures are cut as the published processor cuts them."""
    family, towers, language, _ = TEXT[name]
    model, processor = vlms.FAMILIES[family]()
    texts = [ANSWER_FORMATS["think"].replace("{question}", QUESTION), "system\nuser\nassistant\n"]
    processor.tokenizer = tokenizer = qwen_tokenizer(texts, 600)
    processor.chat_template = CHAT_TEMPLATE
    processor.image_processor.size = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16384}
    config = model.config.to_dict()
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in vlms.QWEN_TOKENS.items()}
    config |= {f"{key}_id": value for key, value in ids.items()} | {"tie_word_embeddings": language["tie_word_embeddings"]}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config["text_config"] = {"model_type": config["text_config"]["model_type"], **towers["text_config"], **language, **ends}
    vision = {**towers["vision_config"], "out_hidden_size": language["hidden_size"]}
    config["vision_config"] = {"model_type": config["vision_config"]["model_type"], **vision}
    processor.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def planned(tmp_path: Path, name: str, config: str, *words: str) -> Plan:
    """Of a config of referring expressions: pictures of the size that most of COCO's have."""
    row = {"question": QUESTION, "box": [10, 20, 200, 180]}
    rows = [{"image": f"{i}.png", "split": "val" if i % 2 else "train", **row} for i in range(80)]
    for i in range(80):
        Image.new("RGB", (640, 480), (i, 0, 0)).save(tmp_path / f"{i}.png")
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    data = [f"{where}.path='{tmp_path / 'rows.jsonl'}'" for where in ("data", "evaluation.data")]
    return draw_up(configs.load(config, [f"policy.model='{vlm(tmp_path / name, name)}'", *data, *words]))


def wrote(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))


def stable_diffusion(folder: Path) -> Path:
    """The configs of Stable Diffusion 3.5 medium."""
    clip = {"model_type": "clip_text_model", "vocab_size": 49408, "max_position_embeddings": 77}
    encoders: dict[str, tuple[str, dict[str, Any]]] = {
        "text_encoder": (
            "CLIPTextModelWithProjection",
            {**clip, "hidden_size": 768, "intermediate_size": 3072, "projection_dim": 768}
            | {"num_attention_heads": 12, "num_hidden_layers": 12},
        ),
        "text_encoder_2": (
            "CLIPTextModelWithProjection",
            {**clip, "hidden_size": 1280, "intermediate_size": 5120, "projection_dim": 1280}
            | {"num_attention_heads": 20, "num_hidden_layers": 32},
        ),
        "text_encoder_3": (
            "T5EncoderModel",
            {"model_type": "t5", "vocab_size": 32128, "d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_heads": 64}
            | {"num_layers": 24, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        ),
    }
    for name, (_, config) in encoders.items():
        wrote(folder / name, config)
    wrote(
        folder / "transformer",
        {"_class_name": "SD3Transformer2DModel", "attention_head_dim": 64, "num_attention_heads": 24, "num_layers": 24}
        | {"caption_projection_dim": 1536, "dual_attention_layers": list(range(13)), "in_channels": 16, "out_channels": 16}
        | {"joint_attention_dim": 4096, "pooled_projection_dim": 2048, "patch_size": 2, "pos_embed_max_size": 384}
        | {"qk_norm": "rms_norm", "sample_size": 128},
    )
    wrote(
        folder / "vae",
        {"_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512], "latent_channels": 16}
        | {"layers_per_block": 2, "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
        | {"use_quant_conv": False, "use_post_quant_conv": False, "sample_size": 1024, "scaling_factor": 1.5305},
    )
    (folder / "scheduler").mkdir()
    scheduler = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler))
    parts: dict[str, Any] = {name: ["transformers", kind] for name, (kind, _) in encoders.items()}
    parts |= {"tokenizer": ["transformers", "CLIPTokenizer"], "tokenizer_2": ["transformers", "CLIPTokenizer"]}
    parts |= {"tokenizer_3": ["transformers", "T5TokenizerFast"], "vae": ["diffusers", "AutoencoderKL"]}
    parts |= {
        "transformer": ["diffusers", "SD3Transformer2DModel"],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    }
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusion3Pipeline", **parts}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config", "card"),
    [
        ("qwen25_3b", "image/qwen25vl_3b_refcoco_24gb", 24),
        pytest.param("qwen3_4b", "image/qwen3vl_4b_refcoco_80gb", 80, marks=pytest.mark.evidence),
    ],
)
def test_vision_language_models_fit_the_cards_of_their_configs(name, config, card, tmp_path):
    made = planned(tmp_path, name, config)
    adapter = made.memory.trained if "weights in bfloat16" in made.memory.stays else 0
    assert made.memory.parameters - adapter == pytest.approx(TEXT[name][3], rel=1e-3)
    assert advice(made.memory, card * GIB, is_text=True) is None


@pytest.mark.slow
def test_a_larger_model_is_told_apart(tmp_path, monkeypatch):
    """By what stays; what moves on top of it is not computed here."""
    monkeypatch.setattr(TextDryRun, "activations", lambda self: {})
    monkeypatch.setattr(TextDryRun, "parts_of_activations", lambda self: {})
    made = planned(tmp_path, "qwen25_7b", "image/qwen25vl_3b_refcoco_24gb")
    assert made.memory.parameters - made.memory.trained == pytest.approx(8.292e9, rel=1e-3)
    assert made.memory.stays["weights in bfloat16"] == pytest.approx(2 * 8.292e9, rel=1e-3)
    assert "weights in bfloat16 15.4" in (advice(made.memory, 16 * GIB, is_text=True) or "")


@pytest.mark.slow
def test_an_image_generator_with_its_encoders(tmp_path):
    folder, lines = stable_diffusion(tmp_path / "sd35"), [f"a red fox, {i}" for i in range(40)]
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    data = [f"data.path='{tmp_path / 'train.txt'}'", f"evaluation.data.path='{tmp_path / 'test.txt'}'"]
    words = [f"policy.model='{folder}'", *data]
    made = draw_up(configs.load("t2i/sd35_medium_pickscore", words))
    memory = made.memory
    assert memory.parameters - memory.trained == pytest.approx(2.243e9, rel=0.02)
    # CLIP's two and T5 in bfloat16
    encoders = [memory.stays[name] for name in ("text_encoder", "text_encoder_2", "text_encoder_3")]
    assert encoders == pytest.approx([2 * 0.1237e9, 2 * 0.6947e9, 2 * 4.762e9], rel=0.01)
    assert memory.stays["vae"] == pytest.approx(4 * 83.8e6, rel=0.01)
    assert advice(memory, 24 * GIB, is_text=False) is None
