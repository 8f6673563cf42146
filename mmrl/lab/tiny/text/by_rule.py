"""Tiny models of real classes whose tensors, features and positions mmrl reads from signatures."""

from mmrl.lab.tiny.byte_tokens import Built, HubObject, Kwargs, byte_tokenizer, token_ids
from mmrl.lab.tiny.text.llms import chat_template

VISION: Kwargs = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL: Kwargs = {"shortest_edge": 56 * 56, "longest_edge": 112 * 112}


def rope() -> Kwargs:
    """Plain rotary positions; a dict of its own, since configs write into it."""
    return {"rope_type": "default", "rope_theta": 1e4}


def ids_of(tokenizer: HubObject, **tokens: str) -> Kwargs:
    """Name in a config -> the id of a token."""
    return {name: tokenizer.convert_tokens_to_ids(token) for name, token in tokens.items()}


def mistral3() -> Built:
    """Pixtral's rows of patches, merged 2 by 2, with a token at the end of each row."""
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration, PixtralImageProcessor, PixtralProcessor

    tokenizer = byte_tokenizer({}, others=["[IMG]", "[IMG_BREAK]", "[IMG_END]"])
    config = Mistral3Config(
        text_config=token_ids(tokenizer, model_type="mistral", head_dim=8),
        vision_config={
            **VISION,
            "model_type": "pixtral",
            "head_dim": 16,
            "image_size": 112,
            "patch_size": 14,
            "rope_parameters": rope(),
        },
        **ids_of(tokenizer, image_token_index="[IMG]"),
    )
    pictures = PixtralImageProcessor(size={"longest_edge": 112}, patch_size=14)
    template = chat_template("[IMG]")
    processor = PixtralProcessor(pictures, tokenizer, patch_size=14, spatial_merge_size=2, chat_template=template)
    return Mistral3ForConditionalGeneration(config), processor


def gemma4(ears: Kwargs | None = None, **text: object) -> Built:
    """A picture gives up to 70 tokens, by its shape; one layer in two attends to a window, and logits are capped; `ears`: its
    audio tower."""
    from transformers import (
        Gemma4AudioFeatureExtractor,
        Gemma4Config,
        Gemma4ForConditionalGeneration,
        Gemma4ImageProcessor,
        Gemma4Processor,
        Gemma4VideoProcessor,
    )

    named = {f"{kind}_token": f"<|{kind}|>" for kind in ("image", "audio")}
    named |= {"boi_token": "<|image>", "eoi_token": "<image|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"}
    tokenizer = byte_tokenizer(named, others=["<|video|>"], bos="<bos>")
    layers = ["sliding_attention", "full_attention"]
    config = Gemma4Config(
        text_config=token_ids(tokenizer, head_dim=8, global_head_dim=8, layer_types=layers, sliding_window=64)
        | {
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": len(tokenizer),
            "final_logit_softcapping": 5.0,
            **text,
        },
        vision_config={**VISION, "num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 64}
        | {"pooling_kernel_size": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
        audio_config=ears,
        **ids_of(tokenizer, image_token_id="<|image|>", video_token_id="<|video|>", audio_token_id="<|audio|>"),
        **ids_of(
            tokenizer, boi_token_id="<|image>", eoi_token_id="<image|>", boa_token_id="<|audio>", eoa_token_index="<audio|>"
        ),
    )
    size: Kwargs = {"max_soft_tokens": 70, "pooling_kernel_size": 2}
    processor = Gemma4Processor(
        feature_extractor=Gemma4AudioFeatureExtractor(),
        image_processor=Gemma4ImageProcessor(**size),
        tokenizer=tokenizer,
        video_processor=Gemma4VideoProcessor(**size),
        chat_template=chat_template("<|image|>", "<|video|>", start="{{ bos_token }}", audio="<|audio|>"),
    )
    return Gemma4ForConditionalGeneration(config), processor


def gemma4_that_hears() -> Built:
    """The same with two layers that listen to chunks of 12 tokens, 25 a second, as E2B and E4B do."""
    sizes: Kwargs = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "output_proj_dims": 32}
    return gemma4({**sizes, "subsampling_conv_channels": [128, 4]})


def lfm2_vl() -> Built:
    """Patches without a size, up to four tiles; one layer in two is a convolution."""
    from transformers import Lfm2VlConfig, Lfm2VlForConditionalGeneration, Lfm2VlImageProcessor, Lfm2VlProcessor

    named = {"image_token": "<image>", "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>"}
    tiles = [f"<|img_row_{row}_col_{column}|>" for row in range(1, 5) for column in range(1, 5)]
    tokenizer = byte_tokenizer({**named, "image_thumbnail": "<|img_thumbnail|>"}, others=tiles)
    config = Lfm2VlConfig(
        text_config=token_ids(tokenizer, model_type="lfm2", layer_types=["conv", "full_attention"], rope_parameters=rope()),
        vision_config={
            **VISION,
            "model_type": "siglip2_vision_model",
            "patch_size": 16,
            "num_patches": 64,
            "vision_use_head": False,
        },
        projector_hidden_size=32,
        **ids_of(tokenizer, image_token_id="<image>"),
    )
    tiling: Kwargs = {"tile_size": 64, "max_tiles": 4, "min_tiles": 2, "do_image_splitting": True}
    pictures = Lfm2VlImageProcessor(**tiling, max_image_tokens=16, min_image_tokens=4, encoder_patch_size=16)
    return Lfm2VlForConditionalGeneration(config), Lfm2VlProcessor(pictures, tokenizer, chat_template=chat_template("<image>"))


def minicpmv4_6() -> Built:
    """A view of the whole picture and slices of it; text layers of Qwen3.5, one in two of which carries a state."""
    from transformers import (
        MiniCPMV4_6Config,
        MiniCPMV4_6ForConditionalGeneration,
        MiniCPMV4_6ImageProcessor,
        MiniCPMV4_6Processor,
        MiniCPMV4_6VideoProcessor,
    )

    marks = {
        f"{kind}_{end}_token": f"<{'/' if end == 'end' else ''}{kind}>"
        for kind in ("image", "slice", "image_id")
        for end in ("start", "end")
    }
    named = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    tokenizer = byte_tokenizer({**named, **marks})
    linear: Kwargs = {
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    }
    axes: Kwargs = {**rope(), "mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 1.0}
    config = MiniCPMV4_6Config(
        text_config=token_ids(tokenizer, model_type="qwen3_5_text", head_dim=8, rope_parameters=axes)
        | {**linear, "layer_types": ["linear_attention", "full_attention"]},
        vision_config={**VISION, "image_size": 64, "patch_size": 16, "insert_layer_id": 0},
        insert_layer_id=0,
        image_size=64,
        **ids_of(tokenizer, image_token_id="<|image_pad|>", video_token_id="<|video_pad|>"),
    )
    size: Kwargs = {"patch_size": 16, "scale_resolution": 64}
    processor = MiniCPMV4_6Processor(
        image_processor=MiniCPMV4_6ImageProcessor(**size),
        tokenizer=tokenizer,
        video_processor=MiniCPMV4_6VideoProcessor(**size),
        chat_template=chat_template("<|image_pad|>", "<|video_pad|>"),
    )
    return MiniCPMV4_6ForConditionalGeneration(config), processor


def ovis2() -> Built:
    """Tiles as probabilities over visual words; tokens between tiles are filled by the vision part as well."""
    from transformers import Ovis2Config, Ovis2ForConditionalGeneration, Ovis2ImageProcessor, Ovis2Processor

    marks = [f"<IMG_{name}>" for name in ("START", "GRID", "COL", "ROW", "END")]
    tokenizer = byte_tokenizer({}, others=["<image>", "<IMG_ATOM>", *marks])
    config = Ovis2Config(
        text_config=token_ids(tokenizer, model_type="qwen2"),
        vision_config={**VISION, "image_size": 28, "patch_size": 7, "vocab_size": 64, "hidden_stride": 2},
        visual_indicator_token_ids=tokenizer.convert_tokens_to_ids(marks),
        hidden_size=32,
        vocab_size=len(tokenizer),
        **ids_of(tokenizer, image_token_id="<IMG_ATOM>"),
    )
    pictures = Ovis2ImageProcessor(size={"height": 28, "width": 28}, crop_to_patches=True, min_patches=1, max_patches=4)
    return Ovis2ForConditionalGeneration(config), Ovis2Processor(
        pictures, tokenizer, chat_template=chat_template("<image>"), image_seq_length=4
    )


def kimi_k25() -> Built:
    """Patches merged 2 by 2 before DeepSeek-V3's layers, whose attention is latent and whose second layer has experts."""
    from transformers import (
        Kimi_K25Config,
        Kimi_K25ForConditionalGeneration,
        Kimi_K25ImageProcessor,
        Kimi_K25Processor,
        Kimi_K25VideoProcessor,
    )

    named = {"image_token": "<|media_pad|>", "video_token": "<|kimi_k25_video_placeholder|>"}
    marks = {"vision_start_token_id": "<|media_begin|>", "vision_end_token_id": "<|media_end|>"}
    tokenizer = byte_tokenizer(named, others=[*marks.values(), "<|media_content|>"])
    latent: Kwargs = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    experts: Kwargs = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    config = Kimi_K25Config(
        text_config=token_ids(tokenizer, model_type="deepseek_v3", rope_parameters=rope(), moe_intermediate_size=32)
        | {**latent, **experts, "num_key_value_heads": 4},
        vision_config={**VISION, "pos_emb_height": 8, "pos_emb_width": 8, "rope_parameters": rope()},
        projection_hidden_size=32,
        **ids_of(tokenizer, image_token_id=named["image_token"], video_token_id=named["video_token"], **marks),
    )
    processor = Kimi_K25Processor(
        image_processor=Kimi_K25ImageProcessor(),
        tokenizer=tokenizer,
        video_processor=Kimi_K25VideoProcessor(),
        chat_template=chat_template("<|media_begin|><|media_pad|><|media_end|>"),
    )
    return Kimi_K25ForConditionalGeneration(config), processor


def muse_glimmer() -> Built:
    """Patches of 14 pixels merged 2 by 2; logits are multiplied and capped behind the head."""
    from transformers import (
        MuseGlimmerConfig,
        MuseGlimmerForConditionalGeneration,
        MuseGlimmerImageProcessor,
        MuseGlimmerProcessor,
        MuseGlimmerVideoProcessor,
    )

    others = ["<|image|>", "<|image_start|>", "<|image_end|>", "<|vid_frame_separator|>", "<|vid_start|>", "<|vid_end|>"]
    tokenizer = byte_tokenizer({"image_token": "<|patch|>", "video_token": "<|video|>"}, others=others)
    config = MuseGlimmerConfig(
        text_config=token_ids(tokenizer, head_dim=8, layer_types=["sliding_attention", "full_attention"], sliding_window=64),
        vision_config={**VISION, "pos_emb_height": 8, "pos_emb_width": 8, "max_position_embeddings": 64},
        out_hidden_size=128,
        projector_hidden_size=32,
        **ids_of(tokenizer, image_token_id="<|patch|>", video_token_id="<|video|>"),
    )
    processor = MuseGlimmerProcessor(
        image_processor=MuseGlimmerImageProcessor(size=SMALL),
        tokenizer=tokenizer,
        video_processor=MuseGlimmerVideoProcessor(size=SMALL),
        chat_template=chat_template("<|patch|>", "<|video|>"),
    )
    return MuseGlimmerForConditionalGeneration(config), processor


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
