"""Vision-language models of the real classes with some 0.1 M random weights, and their real processors, saved to a folder.

`build("qwen3_vl", folder)` needs no download. The tokenizer knows the 256 bytes and each family's own special tokens, so
every text round-trips. Weights are drawn wide enough that a picture visibly moves the next-token distribution.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from mmrl.lab.tiny.byte_tokens import (
    EXPERTS,
    LINEAR,
    SMALL,
    TOWER,
    VISION,
    Built,
    HubObject,
    Kwargs,
    byte_tokenizer,
    hub,
    ids_of,
    model_of,
    processor_of,
    rope,
    token_ids,
)
from mmrl.lab.tiny.text import llms
from mmrl.lab.tiny.text.ears import EARS, qwen2_5_omni_thinker, qwen3_omni_moe_thinker
from mmrl.lab.tiny.text.llms import chat_template
from mmrl.lab.tiny.tokenizer import QWEN_TOKENS, qwen_ids

EYES: Kwargs = {**VISION, "depth": 2, "num_heads": 2, "out_hidden_size": 32, "spatial_merge_size": 2, "temporal_patch_size": 2}


def build(family: str, folder: Path, seed: int = 0) -> Path:
    """Save model and processor of one family to `folder` and return it; raises ValueError for an unknown family."""
    if family not in FAMILIES:
        raise ValueError(f"no tiny model of family {family!r}: choose one of {', '.join(FAMILIES)}")
    return save_random(FAMILIES[family], folder, seed)


def save_random(make: Callable[[], Built], folder: Path, seed: int) -> Path:
    """Save a model with random weights of this seed, and its processor, to a folder and return it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, processor = make()
        draw_weights(model)
    tokenizer = getattr(processor, "tokenizer", processor)
    for name in ("eos_token_id", "pad_token_id", "bos_token_id"):
        setattr(model.generation_config, name, getattr(tokenizer, name))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@torch.no_grad()
def draw_weights(model: torch.nn.Module) -> None:
    """Draw matrices from N(0, 1 / fan_in), tables and lone vectors from N(0, 1/16); norms and biases stay as they are."""
    for name, weight in model.named_parameters():
        if "embed" in name.lower() or "newline" in name:
            weight.normal_(0, 0.25)
        elif weight.ndim > 1:
            weight.normal_(0, (weight.numel() / weight.shape[0]) ** -0.5)


def qwen2_5_vl() -> Built:
    """Patches of 14 pixels merged 2 by 2: one token per 28 x 28 pixels."""
    tokenizer = byte_tokenizer(QWEN_TOKENS)
    model = model_of(
        "Qwen2_5_VL",
        text_config=token_ids(tokenizer, rope_parameters=rope(1, 1, 2)),
        vision_config={**EYES, "patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]},
        **qwen_ids(tokenizer),
    )
    patches: Kwargs = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "size": SMALL}
    return model, processor_of("Qwen2_5_VL", tokenizer, patches, sees="Qwen2VL", chat_template=qwen_template())


def qwen3_vl() -> Built:
    """Patches of 16 pixels merged 2 by 2; features of a middle vision layer enter the language model too (deepstack)."""
    tokenizer = byte_tokenizer(QWEN_TOKENS)
    model = model_of(
        "Qwen3VL",
        text_config=token_ids(tokenizer, head_dim=8, rope_parameters=rope(2, 1, 1, mrope_interleaved=True)),
        vision_config={**EYES, "patch_size": 16, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        **qwen_ids(tokenizer),
    )
    return model, qwen3_processor(tokenizer)


def qwen3_processor(tokenizer: HubObject) -> HubObject:
    patches: Kwargs = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    pictures, clips = (
        {**patches, "size": {"shortest_edge": 64 * 64, "longest_edge": longest}} for longest in (128 * 128, 8 * 128 * 128)
    )
    return processor_of("Qwen3VL", tokenizer, pictures, clips, "Qwen2VL", "Qwen3VL", chat_template=qwen_template())


def qwen_template() -> str:
    around = "<|vision_start|>{}<|vision_end|>"
    return chat_template(around.format(QWEN_TOKENS["image_token"]), around.format(QWEN_TOKENS["video_token"]))


def smolvlm() -> Built:
    """Tiles of 32 pixels (4 tokens each) and a view of the whole picture."""
    named = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>"}
    named |= {"end_of_utterance_token": "<end_of_utterance>", "video_token": "<video>"}
    tokenizer = byte_tokenizer(named, others=[f"<row_{row}_col_{col}>" for row in (1, 2) for col in (1, 2)])
    tile, patch, shrink = 32, 8, 2
    model = model_of(
        "SmolVLM",
        text_config=token_ids(tokenizer, model_type="llama"),
        vision_config={**TOWER, "image_size": tile, "patch_size": patch},
        scale_factor=shrink,
        pad_token_id=tokenizer.pad_token_id,
        **ids_of(tokenizer, image_token_id="<image>"),
    )
    largest: Kwargs = {"max_image_size": {"longest_edge": tile}}
    processor = processor_of(
        "SmolVLM",
        tokenizer,
        {"size": {"longest_edge": 2 * tile}, "do_image_splitting": True, **largest},
        {"size": {"longest_edge": tile}, "num_frames": 4, "fps": 1, **largest},
        image_seq_len=(tile // patch // shrink) ** 2,
        chat_template=chat_template("<image>", "<video>"),
    )
    return model, processor


def internvl() -> Built:
    """Up to four tiles of 28 pixels (4 tokens each), and a thumbnail when there are several."""
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    tokenizer = byte_tokenizer({**named, "video_token": "<video>"})
    tile, patch = 28, 7
    per_tile = (tile // patch // 2) ** 2
    model = model_of(
        "InternVL",
        text_config=token_ids(tokenizer, model_type="qwen2"),
        vision_config={**TOWER, "image_size": [tile, tile], "patch_size": [patch, patch]},
        image_seq_length=per_tile,
        downsample_ratio=0.5,
        **ids_of(tokenizer, image_token_id="<IMG_CONTEXT>"),
    )
    size: Kwargs = {"size": {"height": tile, "width": tile}}
    tiles: Kwargs = {**size, "crop_to_patches": True, "min_patches": 1, "max_patches": 4}
    template = chat_template("<IMG_CONTEXT>\n", "<video>\n")
    return model, processor_of(
        "InternVL", tokenizer, tiles, size, "GotOcr2", "InternVL", image_seq_length=per_tile, chat_template=template
    )


def llava_onevision() -> Built:
    """Up to four tiles of 28 pixels (16 tokens each) beside the whole picture; several pictures get no tiles."""
    tokenizer = byte_tokenizer({"image_token": "<image>", "video_token": "<video>"})
    tile, patch = 28, 7
    grids = [[rows * tile, cols * tile] for rows in (1, 2) for cols in (1, 2)]
    eyes: Kwargs = {"model_type": "siglip_vision_model", "image_size": tile, "patch_size": patch, "vision_use_head": False}
    model = model_of(
        "LlavaOnevision",
        text_config=token_ids(tokenizer, model_type="qwen2"),
        vision_config=TOWER | eyes,
        image_grid_pinpoints=grids,
        vision_aspect_ratio="anyres_max_9",
        **ids_of(tokenizer, image_token_index="<image>", video_token_index="<video>"),
    )
    size: Kwargs = {"size": {"height": tile, "width": tile}}
    processor = processor_of(
        "LlavaOnevision",
        tokenizer,
        {**size, "image_grid_pinpoints": grids},
        size,
        num_image_tokens=(tile // patch) ** 2,
        vision_feature_select_strategy="full",
        chat_template=chat_template("<image>\n", "<video>\n"),
    )
    return model, processor


def gemma3() -> Built:
    """4 tokens per picture that see each other both ways; one layer in two attends to a window only."""
    named = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = byte_tokenizer(named, bos="<bos>")
    side, per_image = 28, 4
    layers: Kwargs = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
    model = model_of(
        "Gemma3",
        text_config=token_ids(tokenizer, head_dim=8, query_pre_attn_scalar=8, **layers),
        vision_config={**TOWER, "image_size": side, "patch_size": 7, "vision_use_head": False},
        mm_tokens_per_image=per_image,
        **ids_of(tokenizer, **{f"{name}_index": token for name, token in named.items()}),
    )
    processor = hub(
        "Gemma3Processor",
        image_processor=hub("Gemma3ImageProcessor", size={"height": side, "width": side}),
        tokenizer=tokenizer,
        image_seq_length=per_image,
        chat_template=chat_template(named["boi_token"], start="{{ bos_token }}"),
    )
    return model, processor


def qwen3_5(kind: str = "Qwen3_5", **text: object) -> Built:
    """Patches and positions of Qwen3-VL; three layers in four carry a recurrent state (gated delta net) instead of attention."""
    tokenizer = byte_tokenizer(QWEN_TOKENS)
    axes = rope(2, 1, 1, mrope_interleaved=True, partial_rotary_factor=1.0)
    model = model_of(
        kind,
        text_config=token_ids(tokenizer, head_dim=8, rope_parameters=axes, **LINEAR, **text),
        vision_config={**EYES, "patch_size": 16, "num_position_embeddings": 16},
        **qwen_ids(tokenizer),
    )
    return model, qwen3_processor(tokenizer)


def qwen3_5_moe() -> Built:
    """The same with experts."""
    experts: Kwargs = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return qwen3_5("Qwen3_5Moe", **experts, shared_expert_intermediate_size=32)


def glm4v(kind: str = "Glm4v", reader: str = "Glm4v", **text: object) -> Built:
    """Patches of 14 pixels merged 2 by 2; frames of a clip are written with the marks of pictures, each with its second.

    `kind` and `reader`: how the classes of the model and of its processor begin.
    """
    named = {"image_token": "<|image|>", "video_token": "<|video|>"}
    ends = [(kind, name, end) for kind in ("image", "video") for name, end in (("start", "begin"), ("end", "end"))]
    marks = {f"{kind}_{name}_token_id": f"<|{end}_of_{kind}|>" for kind, name, end in ends}
    tokenizer = byte_tokenizer(named, others=list(marks.values()))
    model = model_of(
        kind,
        text_config=token_ids(tokenizer, rope_parameters=rope(1, 1, 2, partial_rotary_factor=1.0), **text),
        vision_config={**EYES, "patch_size": 14, "image_size": 56},
        **ids_of(tokenizer, image_token_id="<|image|>", video_token_id="<|video|>", **marks),
    )
    patches: Kwargs = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "size": SMALL}
    clips = {**patches, "size": {**SMALL, "longest_edge": 8 * 112 * 112}}
    around = "<|begin_of_{0}|><|{0}|><|end_of_{0}|>"
    template = chat_template(around.format("image"), around.format("video"))
    return model, processor_of(reader, tokenizer, patches, clips, chat_template=template)


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


def by_name(*makers: Callable[[], Built]) -> dict[str, Callable[[], Built]]:
    return {make.__name__: make for make in makers}


BY_RULE = by_name(mistral3, gemma4, lfm2_vl, minicpmv4_6, ovis2, kimi_k25, muse_glimmer)
"""Type of transformers whose tensors, features and positions mmrl reads from signatures -> its tiny model."""
FAMILIES: dict[str, Callable[[], Built]] = {
    **by_name(qwen2_5_vl, qwen3_vl, smolvlm, internvl, llava_onevision, gemma3, qwen3_5, qwen3_5_moe, glm4v),
    "glm4v_moe": partial(glm4v, "Glm4vMoe", **EXPERTS),
    "glm46v": partial(glm4v, "Glm46V", "Glm46V"),
    **by_name(llms.qwen3, llms.llama, qwen2_5_omni_thinker, qwen3_omni_moe_thinker, gemma4_that_hears),
    **BY_RULE,
    **EARS,
}
