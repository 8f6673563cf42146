"""Models of published sizes with random weights, written to a folder without a download; and tiny ones of the same classes.

Shapes are those of the public config files of Qwen2.5-VL-3B and 7B and Stable Diffusion 3.5 medium. Tokenizers know bytes only,
and as many tokens that no text gives as the real vocabulary has; prompts are made up, so what words they are does not matter.
SD3.5's text encoders keep their widths and lose their depth (they run once per prompt), and T5 is absent.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

VOCABULARY, VOCABULARY_7B = 151_936, 152_064
TOKEN = 28
"""Pixels per token and side of Qwen2.5-VL."""
SD35_MEDIUM: dict[str, Any] = {
    "sample_size": 128,
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 24,
    "attention_head_dim": 64,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "caption_projection_dim": 1536,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 384,
    "dual_attention_layers": tuple(range(13)),
    "qk_norm": "rms_norm",
}


@contextmanager
def made_on(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Make modules there, with weights of this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def vlm(folder: Path, device: torch.device, tiny: bool, is_7b: bool = False) -> str:
    """Write a Qwen2.5-VL (3.75 B weights, 8.29 B, or 0.1 M) and return where."""
    from transformers import AutoProcessor, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    from mmrl.lab.tiny.text import vlms

    vlms.build("qwen2_5_vl", folder)
    processor = AutoProcessor.from_pretrained(folder)
    processor.image_processor.size = {"shortest_edge": 4 * TOKEN**2, "longest_edge": 10**8}
    processor.save_pretrained(folder)
    if tiny:
        return str(folder)
    config: Any = published_vlm(Qwen2_5_VLConfig.from_pretrained(folder), is_7b)
    with made_on(device, torch.bfloat16):
        model: Any = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config = type(model.generation_config).from_pretrained(folder)
    model.save_pretrained(folder)
    fill_vocabulary(folder / "tokenizer.json", VOCABULARY_7B if is_7b else VOCABULARY)
    return str(folder)


def published_vlm(config: Any, is_7b: bool = False) -> Any:
    """The config with the sizes of Qwen2.5-VL-3B or 7B."""
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = 2048, 11008, 36
    text.num_attention_heads, text.num_key_value_heads, text.vocab_size = 16, 2, VOCABULARY
    text.layer_types, text.max_position_embeddings, text.rms_norm_eps = ["full_attention"] * 36, 128_000, 1e-6
    text.rope_parameters = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    config.tie_word_embeddings = text.tie_word_embeddings = True
    vision.depth, vision.hidden_size, vision.num_heads, vision.intermediate_size = 32, 1280, 16, 3420
    vision.window_size, vision.fullatt_block_indexes, vision.out_hidden_size = 112, [7, 15, 23, 31], 2048
    if is_7b:
        text.hidden_size, text.intermediate_size, text.num_hidden_layers = 3584, 18944, 28
        text.num_attention_heads, text.num_key_value_heads, text.vocab_size = 28, 4, VOCABULARY_7B
        text.layer_types, vision.out_hidden_size = ["full_attention"] * 28, 3584
        config.tie_word_embeddings = text.tie_word_embeddings = False
    return config


def fill_vocabulary(file: Path, size: int) -> None:
    """Give the tokenizer so many tokens in all; no text is cut into the new ones, but all of them can be written."""
    kept = json.loads(file.read_text())
    words = kept["model"]["vocab"]
    # Special tokens that the model's own table lacks would be numbered anew, behind it.
    words.update({token["content"]: token["id"] for token in kept["added_tokens"]})
    taken = set(words.values())
    words.update({f"w{i}": i for i in range(size) if i not in taken})
    file.write_text(json.dumps(kept))


def images(folder: Path, device: torch.device, tiny: bool) -> str:
    """Write a Stable Diffusion 3.5 medium (2.2 B weights), or a tiny one of the same classes, and return where."""
    from mmrl.lab.tiny import byte_tokens
    from mmrl.lab.tiny.flow import pipelines

    pipelines.build("sd3", folder)
    if tiny:
        return str(folder)
    from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import StableDiffusion3Pipeline
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    make = byte_tokens.hub
    pipeline: Any = StableDiffusion3Pipeline.from_pretrained(folder, text_encoder_3=None, tokenizer_3=None)
    with made_on(device, torch.bfloat16):
        transformer = make("SD3Transformer2DModel", **SD35_MEDIUM)
        vae = make(
            "AutoencoderKL",
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(128, 256, 512, 512),
            layers_per_block=2,
            latent_channels=16,
            sample_size=1024,
            scaling_factor=1.5305,
            shift_factor=0.0609,
            use_quant_conv=False,
            use_post_quant_conv=False,
        )
        encoders = []
        for own, width in ((pipeline.text_encoder, 768), (pipeline.text_encoder_2, 1280)):
            sizes = {"hidden_size": width, "intermediate_size": 4 * width, "projection_dim": width}
            heads = {"num_attention_heads": width // 64, "num_hidden_layers": 2}
            encoders.append(CLIPTextModelWithProjection(CLIPTextConfig(**{**own.config.to_dict(), **sizes, **heads})))
    whole = {"transformer": transformer, "vae": vae, "text_encoder": encoders[0], "text_encoder_2": encoders[1]}
    for name, part in whole.items():
        part.save_pretrained(folder / name)
    return str(folder)
