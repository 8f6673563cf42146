"""`mmrl plan` of published sizes: models of billions of weights, from config files alone, on the cards that the configs name."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.app import config as configs
from mmrl.app.memory import GIB, advice
from mmrl.app.plan import Plan, draw_up
from mmrl.policies.templates import ANSWER_FORMATS
from mmrl.tiny import pipelines, vlms
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
    rows = [{"image": f"{i}.png", "question": QUESTION, "box": [10, 20, 200, 180], "split": i % 2 and "val" or "train"} for i in range(64)]
    for i in range(64):
        Image.new("RGB", (640, 480), (i, 0, 0)).save(tmp_path / f"{i}.png")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = [f"{where}.path='{tmp_path / 'rows.jsonl'}'" for where in ("data", "evaluation.data")]
    return draw_up(configs.load(config, [f"policy.model='{vlm(tmp_path / name, name)}'", *data, *words]))


@pytest.mark.parametrize(
    ("name", "config", "card"),
    [
        ("qwen25_3b", "image/qwen25vl_3b_refcoco_24gb", 24),
        ("qwen3_4b", "image/qwen3vl_4b_refcoco_24gb", 24),
        ("qwen25_3b", "image/qwen25vl_3b_refcoco_80gb", 80),
        ("qwen3_4b", "image/qwen3vl_4b_refcoco_80gb", 80),
    ],
)
def test_vision_language_models_fit_the_cards_of_their_configs(name, config, card, tmp_path):
    made = planned(tmp_path, name, config)
    print(config, made.memory, made.usual)
    lora = 0 if made.memory.stays.get("weights in bfloat16") is None else made.memory.trained
    assert made.memory.parameters - lora == pytest.approx(TEXT[name][3], rel=1e-3)
    assert advice(made.memory, card * GIB, is_text=True) is None


def test_a_larger_model_does_not_fit(tmp_path):
    made = planned(tmp_path, "qwen25_7b", "image/qwen25vl_3b_refcoco_24gb")
    print(made.memory, made.usual)
    assert made.memory.parameters - made.memory.trained == pytest.approx(8.292e9, rel=1e-3)
    assert made.memory.stays["weights in bfloat16"] == pytest.approx(2 * 8.292e9, rel=1e-3)
