"""Tiny models of real classes whose tensors, features and positions mmrl reads from signatures."""

from mmrl.lab.tiny.byte_tokens import (
    EXPERTS,
    LINEAR,
    SMALL,
    TOWER,
    Built,
    Kwargs,
    byte_tokenizer,
    hub,
    ids_of,
    model_of,
    processor_of,
    rope,
    token_ids,
)
from mmrl.lab.tiny.text.llms import chat_template


def mistral3() -> Built:
    """Pixtral's rows of patches, merged 2 by 2, with a token at the end of each row."""
    tokenizer = byte_tokenizer({}, others=["[IMG]", "[IMG_BREAK]", "[IMG_END]"])
    eyes: Kwargs = {"model_type": "pixtral", "head_dim": 16, "image_size": 112, "patch_size": 14, "rope_parameters": rope()}
    model = model_of(
        "Mistral3",
        text_config=token_ids(tokenizer, model_type="mistral", head_dim=8),
        vision_config=TOWER | eyes,
        **ids_of(tokenizer, image_token_index="[IMG]"),
    )
    pictures = hub("PixtralImageProcessor", size={"longest_edge": 112}, patch_size=14)
    template = chat_template("[IMG]")
    return model, hub("PixtralProcessor", pictures, tokenizer, patch_size=14, spatial_merge_size=2, chat_template=template)


def gemma4(ears: Kwargs | None = None, **text: object) -> Built:
    """A picture gives up to 70 tokens, by its shape; one layer in two attends to a window, and logits are capped; `ears`: its
    audio tower."""
    named = {f"{kind}_token": f"<|{kind}|>" for kind in ("image", "audio")}
    named |= {"boi_token": "<|image>", "eoi_token": "<image|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"}
    tokenizer = byte_tokenizer(named, others=["<|video|>"], bos="<bos>")
    layers: Kwargs = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64, "global_head_dim": 8}
    layers |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": len(tokenizer), "final_logit_softcapping": 5.0}
    marks = {f"{name}_id": token for name, token in named.items() if name != "eoa_token"}
    model = model_of(
        "Gemma4",
        text_config=token_ids(tokenizer, head_dim=8, **(layers | text)),
        vision_config={**TOWER, "num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 64}
        | {"pooling_kernel_size": 2, "rope_parameters": rope(rope_theta=100.0)},
        audio_config=ears,
        **ids_of(tokenizer, video_token_id="<|video|>", eoa_token_index="<audio|>", **marks),
    )
    processor = processor_of(
        "Gemma4",
        tokenizer,
        {"max_soft_tokens": 70, "pooling_kernel_size": 2},
        feature_extractor=hub("Gemma4AudioFeatureExtractor"),
        chat_template=chat_template("<|image|>", "<|video|>", start="{{ bos_token }}", audio="<|audio|>"),
    )
    return model, processor


def gemma4_that_hears() -> Built:
    """The same with two layers that listen to chunks of 12 tokens, 25 a second, as E2B and E4B do."""
    sizes: Kwargs = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "output_proj_dims": 32}
    return gemma4({**sizes, "subsampling_conv_channels": [128, 4]})


def lfm2_vl() -> Built:
    """Patches without a size, up to four tiles; one layer in two is a convolution."""
    named = {"image_token": "<image>", "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>"}
    tiles = [f"<|img_row_{row}_col_{column}|>" for row in range(1, 5) for column in range(1, 5)]
    tokenizer = byte_tokenizer({**named, "image_thumbnail": "<|img_thumbnail|>"}, others=tiles)
    eyes: Kwargs = {"model_type": "siglip2_vision_model", "patch_size": 16, "num_patches": 64, "vision_use_head": False}
    model = model_of(
        "Lfm2Vl",
        text_config=token_ids(tokenizer, model_type="lfm2", layer_types=["conv", "full_attention"], rope_parameters=rope()),
        vision_config=TOWER | eyes,
        projector_hidden_size=32,
        **ids_of(tokenizer, image_token_id="<image>"),
    )
    tiling: Kwargs = {"tile_size": 64, "max_tiles": 4, "min_tiles": 2, "do_image_splitting": True, "encoder_patch_size": 16}
    pictures = hub("Lfm2VlImageProcessor", **tiling, max_image_tokens=16, min_image_tokens=4)
    return model, hub("Lfm2VlProcessor", pictures, tokenizer, chat_template=chat_template("<image>"))


def minicpmv4_6() -> Built:
    """A view of the whole picture and slices of it; text layers of Qwen3.5, one in two of which carries a state."""
    named = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    for kind in ("image", "slice", "image_id"):
        named |= {f"{kind}_start_token": f"<{kind}>", f"{kind}_end_token": f"</{kind}>"}
    tokenizer = byte_tokenizer(named)
    axes = rope(2, 1, 1, mrope_interleaved=True, partial_rotary_factor=1.0)
    model = model_of(
        "MiniCPMV4_6",
        text_config=token_ids(tokenizer, model_type="qwen3_5_text", head_dim=8, rope_parameters=axes, **LINEAR),
        vision_config={**TOWER, "image_size": 64, "patch_size": 16, "insert_layer_id": 0},
        insert_layer_id=0,
        image_size=64,
        **ids_of(tokenizer, image_token_id="<|image_pad|>", video_token_id="<|video_pad|>"),
    )
    size: Kwargs = {"patch_size": 16, "scale_resolution": 64}
    return model, processor_of("MiniCPMV4_6", tokenizer, size, chat_template=chat_template("<|image_pad|>", "<|video_pad|>"))


def ovis2() -> Built:
    """Tiles as probabilities over visual words; tokens between tiles are filled by the vision part as well."""
    marks = [f"<IMG_{name}>" for name in ("START", "GRID", "COL", "ROW", "END")]
    tokenizer = byte_tokenizer({}, others=["<image>", "<IMG_ATOM>", *marks])
    model = model_of(
        "Ovis2",
        text_config=token_ids(tokenizer, model_type="qwen2"),
        vision_config={**TOWER, "image_size": 28, "patch_size": 7, "vocab_size": 64, "hidden_stride": 2},
        visual_indicator_token_ids=tokenizer.convert_tokens_to_ids(marks),
        hidden_size=32,
        vocab_size=len(tokenizer),
        **ids_of(tokenizer, image_token_id="<IMG_ATOM>"),
    )
    size: Kwargs = {"size": {"height": 28, "width": 28}, "crop_to_patches": True, "min_patches": 1, "max_patches": 4}
    pictures, template = hub("Ovis2ImageProcessor", **size), chat_template("<image>")
    return model, hub("Ovis2Processor", pictures, tokenizer, chat_template=template, image_seq_length=4)


def kimi_k25() -> Built:
    """Patches merged 2 by 2 before DeepSeek-V3's layers, whose attention is latent and whose second layer has experts."""
    named = {"image_token": "<|media_pad|>", "video_token": "<|kimi_k25_video_placeholder|>"}
    marks = {"vision_start_token_id": "<|media_begin|>", "vision_end_token_id": "<|media_end|>"}
    tokenizer = byte_tokenizer(named, others=[*marks.values(), "<|media_content|>"])
    latent: Kwargs = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    text = token_ids(tokenizer, model_type="deepseek_v3", rope_parameters=rope(), **latent, **EXPERTS)
    model = model_of(
        "Kimi_K25",
        text_config={**text, "num_key_value_heads": 4},
        vision_config={**TOWER, "pos_emb_height": 8, "pos_emb_width": 8, "rope_parameters": rope()},
        projection_hidden_size=32,
        **ids_of(tokenizer, image_token_id=named["image_token"], video_token_id=named["video_token"], **marks),
    )
    return model, processor_of(
        "Kimi_K25", tokenizer, {}, chat_template=chat_template("<|media_begin|><|media_pad|><|media_end|>")
    )


def muse_glimmer() -> Built:
    """Patches of 14 pixels merged 2 by 2; logits are multiplied and capped behind the head."""
    others = ["<|image|>", "<|image_start|>", "<|image_end|>", "<|vid_frame_separator|>", "<|vid_start|>", "<|vid_end|>"]
    tokenizer = byte_tokenizer({"image_token": "<|patch|>", "video_token": "<|video|>"}, others=others)
    model = model_of(
        "MuseGlimmer",
        text_config=token_ids(tokenizer, head_dim=8, layer_types=["sliding_attention", "full_attention"], sliding_window=64),
        vision_config={**TOWER, "pos_emb_height": 8, "pos_emb_width": 8, "max_position_embeddings": 64},
        out_hidden_size=128,
        projector_hidden_size=32,
        **ids_of(tokenizer, image_token_id="<|patch|>", video_token_id="<|video|>"),
    )
    return model, processor_of("MuseGlimmer", tokenizer, {"size": SMALL}, chat_template=chat_template("<|patch|>", "<|video|>"))


BY_RULE = {
    "mistral3": mistral3,
    "gemma4": gemma4,
    "lfm2_vl": lfm2_vl,
    "minicpmv4_6": minicpmv4_6,
    "ovis2": ovis2,
    "kimi_k25": kimi_k25,
    "muse_glimmer": muse_glimmer,
}
"""Type of transformers -> its tiny model."""
