"""Published models' sizes: their configs and processors, and random weights for them, written to folders without a download."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.app.modality.merge import write_weights
from mmrl.lab.tiny.flow import pipeline_parts, pipelines
from mmrl.lab.tiny.text import vlms
from mmrl.lab.tiny.tokenizer import CHAT_TEMPLATE, qwen_tokenizer
from mmrl.policies.flow.dry_run import part_of
from mmrl.policies.flow.loading import load_index
from mmrl.policies.text.prompt.templates import ANSWER_FORMATS

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
    config["dtype"] = "bfloat16"
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config["text_config"] = {"model_type": config["text_config"]["model_type"], **towers["text_config"], **language, **ends}
    vision = {**towers["vision_config"], "out_hidden_size": language["hidden_size"]}
    config["vision_config"] = {"model_type": config["vision_config"]["model_type"], **vision}
    processor.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


DIFFUSERS, ENCODERS = "diffusion_pytorch_model", ("text_encoder", "text_encoder_2")
ABSENT = ("text_encoder_3", "tokenizer_3")


def wrote(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))


def stable_diffusion(folder: Path, t5: bool = True) -> Path:
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
    if not t5:
        del encoders["text_encoder_3"]
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
    parts |= {"vae": ["diffusers", "AutoencoderKL"]}
    parts |= {"tokenizer_3": ["transformers", "T5TokenizerFast"]} if t5 else {name: [None, None] for name in ABSENT}
    parts |= {
        "transformer": ["diffusers", "SD3Transformer2DModel"],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    }
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusion3Pipeline", **parts}))
    return folder


def flux(folder: Path) -> Path:
    """The configs of FLUX.1-dev; its encoders and autoencoder have the shapes of Stable Diffusion 3's."""
    stable_diffusion(folder)
    for name in ("text_encoder_2", "transformer"):
        shutil.rmtree(folder / name)
    (folder / "text_encoder_3").rename(folder / "text_encoder_2")
    layers = {"_class_name": "FluxTransformer2DModel", "attention_head_dim": 128, "num_attention_heads": 24, "num_layers": 19}
    rest = {"num_single_layers": 38, "in_channels": 64, "joint_attention_dim": 4096, "pooled_projection_dim": 768}
    wrote(folder / "transformer", {**layers, **rest, "patch_size": 1, "guidance_embeds": True, "axes_dims_rope": [16, 56, 56]})
    change(folder / "vae" / "config.json", scaling_factor=0.3611, shift_factor=0.1159)
    scheduler = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0, "use_dynamic_shifting": True}
    scheduler |= {"base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256, "max_image_seq_len": 4096}
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler))
    parts = {
        "text_encoder": ["transformers", "CLIPTextModel"],
        "text_encoder_2": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "T5TokenizerFast"],
        "vae": ["diffusers", "AutoencoderKL"],
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    }
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline", **parts}))
    return folder


def change(file: Path, **values: object) -> None:
    """Other values in a config file; those of a table inside are named `table__key`."""
    config = json.loads(file.read_text())
    for name, value in values.items():
        table, _, key = name.rpartition("__")
        (config[table] if table else config)[key] = value
    file.write_text(json.dumps(config))


def vlm_with_weights(folder: Path, small: bool, layers: int | None = None) -> Path:
    """Qwen2.5-VL-3B's shape with random bfloat16 weights.

    Args:
        small: a model of the same class with two narrow layers.
        layers: of the language model and of the vision tower; None: all.
    """
    from transformers import AutoConfig, AutoModelForImageTextToText, GenerationConfig

    vlms.build("qwen2_5_vl", folder) if small else vlm(folder, "qwen25_3b")
    if layers is not None:
        few: dict[str, object] = {"vision_config__depth": layers, "vision_config__fullatt_block_indexes": [layers - 1]}
        change(folder / "config.json", text_config__num_hidden_layers=layers, **few)
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model: Any = AutoModelForImageTextToText.from_config(config)
    draw(stored(model), folder, "model")
    text = config.get_text_config()
    ends = {"eos_token_id": text.eos_token_id, "pad_token_id": text.pad_token_id}
    GenerationConfig(**ends).save_pretrained(folder)
    return folder


def pipeline_with_weights(folder: Path, small: bool, layers: int | None = None) -> Path:
    """Stable Diffusion 3.5 medium's shape without T5, with random bfloat16 weights and tokenizers of letters.

    Args:
        small: a pipeline of the same classes with two narrow layers.
        layers: of the transformer; None: all.
    """
    if small:
        pipelines.build("sd3", folder)
    else:
        stable_diffusion(folder, t5=False)
        for name in ("tokenizer", "tokenizer_2"):
            pipeline_parts.clip_tokenizer().save_pretrained(folder / name)
    if layers is not None:
        change(folder / "transformer" / "config.json", num_layers=layers, dual_attention_layers=[0])
    index = load_index(str(folder))
    for name, stem in {**dict.fromkeys(("transformer", "vae"), DIFFUSERS), **dict.fromkeys(ENCODERS, "model")}.items():
        draw(stored(part_of(str(folder), index, name)), folder / name, stem)
    return folder


def stored(network: nn.Module) -> dict[str, Tensor]:
    """The weights and tables that a checkpoint holds, those with two names once."""
    tables = {name: x for name, x in network.state_dict(keep_vars=True).items() if not isinstance(x, nn.Parameter)}
    return {**dict(network.named_parameters()), **tables}


def draw(weights: Mapping[str, Tensor], folder: Path, stem: str) -> None:
    """Write matrices drawn from N(0, 1 / fan_in), norms of 1 and biases of 0, in bfloat16, as much as fits a file at a time."""
    generator = torch.Generator().manual_seed(0)

    def make(name: str) -> Tensor:
        weight = weights[name]
        if weight.ndim < 2:
            return torch.full(weight.shape, float(not name.endswith("bias")), dtype=torch.bfloat16)
        spread = 0.02 if "embed" in name else (weight.numel() / weight.shape[0]) ** -0.5
        return torch.empty(weight.shape, dtype=torch.bfloat16).normal_(0, spread, generator=generator)

    for file in folder.glob("*.safetensors*"):
        file.unlink()
    write_weights({name: 2 * weight.numel() for name, weight in weights.items()}, make, folder, stem)
