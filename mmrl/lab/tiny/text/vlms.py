"""Vision-language models of the real classes with some 0.1 M random weights, and their real processors, saved to a folder.

`build("qwen3_vl", folder)` needs no download. The tokenizer knows the 256 bytes and each family's own special tokens, so
every text round-trips. Weights are drawn wide enough that a picture visibly moves the next-token distribution.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from mmrl.lab.tiny.byte_tokens import Built, HubObject, Kwargs, byte_tokenizer, token_ids
from mmrl.lab.tiny.text import llms
from mmrl.lab.tiny.text.by_rule import BY_RULE, gemma4_that_hears
from mmrl.lab.tiny.text.ears import EARS
from mmrl.lab.tiny.text.llms import chat_template
from mmrl.lab.tiny.text.omni import qwen2_5_omni_thinker, qwen3_omni_moe_thinker
from mmrl.lab.tiny.tokenizer import QWEN_TOKENS, qwen_ids

VISION: Kwargs = {"hidden_size": 32, "intermediate_size": 64}
TOWER: Kwargs = {**VISION, "num_hidden_layers": 2, "num_attention_heads": 2}


def build(family: str, folder: Path, seed: int = 0) -> Path:
    """Save model and processor of one family to `folder` and return it; raises ValueError for an unknown family."""
    if family not in FAMILIES:
        raise ValueError(f"no tiny model of family {family!r}: choose one of {', '.join(FAMILIES)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, processor = FAMILIES[family]()
        draw_weights(model)
    tokenizer = getattr(processor, "tokenizer", processor)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.bos_token_id = tokenizer.bos_token_id
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
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    tokenizer = byte_tokenizer(QWEN_TOKENS)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    patches: Kwargs = {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
    config = Qwen2_5_VLConfig(
        text_config=token_ids(tokenizer, rope_parameters=rope),
        vision_config={**VISION, **patches, "depth": 2, "num_heads": 2, "window_size": 56, "out_hidden_size": 32}
        | {"fullatt_block_indexes": [1]},
        **qwen_ids(tokenizer),
    )
    size: Kwargs = {"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
    patches: Kwargs = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "size": size}
    processor = Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**patches),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(**patches),
        chat_template=qwen_template(),
    )
    return Qwen2_5_VLForConditionalGeneration(config), processor


def qwen3_vl() -> Built:
    """Patches of 16 pixels merged 2 by 2; features of a middle vision layer enter the language model too (deepstack)."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    tokenizer = byte_tokenizer(QWEN_TOKENS)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    patches: Kwargs = {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}
    config = Qwen3VLConfig(
        text_config=token_ids(tokenizer, head_dim=8, rope_parameters=rope),
        vision_config={**VISION, **patches, "depth": 2, "num_heads": 2, "out_hidden_size": 32}
        | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        **qwen_ids(tokenizer),
    )
    return Qwen3VLForConditionalGeneration(config), qwen3_processor(tokenizer)


def qwen3_processor(tokenizer: HubObject) -> HubObject:
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    patches: Kwargs = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**patches, size={"shortest_edge": 64 * 64, "longest_edge": 128 * 128}),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**patches, size={"shortest_edge": 64 * 64, "longest_edge": 8 * 128 * 128}),
        chat_template=qwen_template(),
    )


def qwen_template() -> str:
    around = "<|vision_start|>{}<|vision_end|>"
    return chat_template(around.format(QWEN_TOKENS["image_token"]), around.format(QWEN_TOKENS["video_token"]))


def smolvlm() -> Built:
    """Tiles of 32 pixels (4 tokens each) and a view of the whole picture."""
    from transformers import (
        SmolVLMConfig,
        SmolVLMForConditionalGeneration,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    tokenizer = byte_tokenizer(
        {
            "image_token": "<image>",
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "end_of_utterance_token": "<end_of_utterance>",
            "video_token": "<video>",
        },
        others=[f"<row_{row}_col_{col}>" for row in (1, 2) for col in (1, 2)],
    )
    tile, patch, shrink = 32, 8, 2
    padding: Kwargs = {"pad_token_id": tokenizer.pad_token_id}
    config = SmolVLMConfig(
        text_config=token_ids(tokenizer, model_type="llama"),
        vision_config={**TOWER, "image_size": tile, "patch_size": patch},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=shrink,
        **padding,
    )
    largest: Kwargs = {"max_image_size": {"longest_edge": tile}}
    processor = SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(size={"longest_edge": 2 * tile}, do_image_splitting=True, **largest),
        tokenizer=tokenizer,
        video_processor=SmolVLMVideoProcessor(size={"longest_edge": tile}, num_frames=4, fps=1, **largest),
        image_seq_len=(tile // patch // shrink) ** 2,
        chat_template=chat_template("<image>", "<video>"),
    )
    return SmolVLMForConditionalGeneration(config), processor


def internvl() -> Built:
    """Up to four tiles of 28 pixels (4 tokens each), and a thumbnail when there are several."""
    from transformers import (
        GotOcr2ImageProcessor,
        InternVLConfig,
        InternVLForConditionalGeneration,
        InternVLProcessor,
        InternVLVideoProcessor,
    )

    tokenizer = byte_tokenizer(
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        }
    )
    tile, patch = 28, 7
    per_tile = (tile // patch // 2) ** 2
    config = InternVLConfig(
        text_config=token_ids(tokenizer, model_type="qwen2"),
        vision_config={**TOWER, "image_size": [tile, tile], "patch_size": [patch, patch]},
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=per_tile,
        downsample_ratio=0.5,
    )
    size: Kwargs = {"height": tile, "width": tile}
    processor = InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(size=size, crop_to_patches=True, min_patches=1, max_patches=4),
        tokenizer=tokenizer,
        video_processor=InternVLVideoProcessor(size=size),
        image_seq_length=per_tile,
        chat_template=chat_template("<IMG_CONTEXT>\n", "<video>\n"),
    )
    return InternVLForConditionalGeneration(config), processor


def llava_onevision() -> Built:
    """Up to four tiles of 28 pixels (16 tokens each) beside the whole picture; several pictures get no tiles."""
    from transformers import (
        LlavaOnevisionConfig,
        LlavaOnevisionForConditionalGeneration,
        LlavaOnevisionImageProcessor,
        LlavaOnevisionProcessor,
        LlavaOnevisionVideoProcessor,
    )

    tokenizer = byte_tokenizer({"image_token": "<image>", "video_token": "<video>"})
    tile, patch = 28, 7
    grids = [[rows * tile, cols * tile] for rows in (1, 2) for cols in (1, 2)]
    config = LlavaOnevisionConfig(
        text_config=token_ids(tokenizer, model_type="qwen2"),
        vision_config={**TOWER, "model_type": "siglip_vision_model", "image_size": tile, "patch_size": patch}
        | {"vision_use_head": False},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=grids,
        vision_aspect_ratio="anyres_max_9",
    )
    size: Kwargs = {"height": tile, "width": tile}
    processor = LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=grids),
        tokenizer=tokenizer,
        video_processor=LlavaOnevisionVideoProcessor(size=size),
        num_image_tokens=(tile // patch) ** 2,
        vision_feature_select_strategy="full",
        chat_template=chat_template("<image>\n", "<video>\n"),
    )
    return LlavaOnevisionForConditionalGeneration(config), processor


def gemma3() -> Built:
    """4 tokens per picture that see each other both ways; one layer in two attends to a window only."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3ImageProcessor, Gemma3Processor

    named = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = byte_tokenizer(named, bos="<bos>")
    side, patch, per_image = 28, 7, 4
    config = Gemma3Config(
        text_config=token_ids(tokenizer, head_dim=8, query_pre_attn_scalar=8, sliding_window=64)
        | {"layer_types": ["sliding_attention", "full_attention"]},
        vision_config={**TOWER, "image_size": side, "patch_size": patch, "vision_use_head": False},
        mm_tokens_per_image=per_image,
        image_token_index=tokenizer.convert_tokens_to_ids(named["image_token"]),
        boi_token_index=tokenizer.convert_tokens_to_ids(named["boi_token"]),
        eoi_token_index=tokenizer.convert_tokens_to_ids(named["eoi_token"]),
    )
    processor = Gemma3Processor(
        image_processor=Gemma3ImageProcessor(size={"height": side, "width": side}),
        tokenizer=tokenizer,
        image_seq_length=per_image,
        chat_template=chat_template(named["boi_token"], start="{{ bos_token }}"),
    )
    return Gemma3ForConditionalGeneration(config), processor


def qwen3_5() -> Built:
    """Patches and positions of Qwen3-VL; three layers in four carry a recurrent state (gated delta net) instead of attention."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    return qwen3_5_of(Qwen3_5ForConditionalGeneration, Qwen3_5Config)


def qwen3_5_moe() -> Built:
    """The same with experts."""
    from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

    experts: Kwargs = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    text = {**experts, "shared_expert_intermediate_size": 32}
    return qwen3_5_of(Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeConfig, **text)


def qwen3_5_of(model_class: HubObject, config_class: HubObject, **text: object) -> Built:
    tokenizer = byte_tokenizer(QWEN_TOKENS)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    linear: Kwargs = {
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    }
    patches: Kwargs = {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2}
    config = config_class(
        text_config=token_ids(tokenizer, head_dim=8, rope_parameters={**rope, "partial_rotary_factor": 1.0})
        | {**linear, **text, "layer_types": ["linear_attention", "full_attention"]},
        vision_config={**VISION, **patches, "depth": 2, "num_heads": 2, "out_hidden_size": 32, "num_position_embeddings": 16},
        **qwen_ids(tokenizer),
    )
    return model_class(config), qwen3_processor(tokenizer)


def glm4v() -> Built:
    """Patches of 14 pixels merged 2 by 2; frames of a clip are written with the marks of pictures, each with its second."""
    return glm("Glm4v", "Glm4v")


def glm4v_moe() -> Built:
    """The same with experts in the second layer."""
    experts: Kwargs = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    return glm("Glm4vMoe", "Glm4v", moe_intermediate_size=32, **experts)


def glm46v() -> Built:
    """GLM-4.6V: the same layers with a processor of its own."""
    return glm("Glm46V", "Glm46V")


def glm(model: str, reader: str, **text: object) -> Built:
    """A model of the classes that begin with `model`, and a processor of those that begin with `reader`."""
    import transformers

    def of(name: str) -> HubObject:
        return getattr(transformers, name)

    named = {"image_token": "<|image|>", "video_token": "<|video|>"}
    marks = {f"{end}_{kind}": f"<|{end}_of_{kind}|>" for kind in ("image", "video") for end in ("begin", "end")}
    tokenizer = byte_tokenizer(named, others=list(marks.values()))
    ids = {name: tokenizer.convert_tokens_to_ids(mark) for name, mark in marks.items()}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2], "partial_rotary_factor": 1.0}
    patches: Kwargs = {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
    config = of(f"{model}Config")(
        text_config=token_ids(tokenizer, rope_parameters=rope, **text),
        vision_config={**VISION, **patches, "depth": 2, "num_heads": 2, "out_hidden_size": 32, "image_size": 56},
        image_token_id=tokenizer.convert_tokens_to_ids(named["image_token"]),
        video_token_id=tokenizer.convert_tokens_to_ids(named["video_token"]),
        image_start_token_id=ids["begin_image"],
        image_end_token_id=ids["end_image"],
        video_start_token_id=ids["begin_video"],
        video_end_token_id=ids["end_video"],
    )
    size: Kwargs = {"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
    patches: Kwargs = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    around = "<|begin_of_{0}|><|{0}|><|end_of_{0}|>"
    processor = of(f"{reader}Processor")(
        image_processor=of(f"{reader}ImageProcessor")(**patches, size=size),
        tokenizer=tokenizer,
        video_processor=of(f"{reader}VideoProcessor")(**patches, size={"shortest_edge": 56 * 56, "longest_edge": 8 * 112 * 112}),
        chat_template=chat_template(around.format("image"), around.format("video")),
    )
    return of(f"{model}ForConditionalGeneration")(config), processor


FAMILIES: dict[str, Callable[[], Built]] = {
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "smolvlm": smolvlm,
    "internvl": internvl,
    "llava_onevision": llava_onevision,
    "gemma3": gemma3,
    "qwen3_5": qwen3_5,
    "qwen3_5_moe": qwen3_5_moe,
    "glm4v": glm4v,
    "glm4v_moe": glm4v_moe,
    "glm46v": glm46v,
    "qwen3": llms.qwen3,
    "llama": llms.llama,
    "qwen2_5_omni_thinker": qwen2_5_omni_thinker,
    "qwen3_omni_moe_thinker": qwen3_omni_moe_thinker,
    "gemma4_that_hears": gemma4_that_hears,
    **BY_RULE,
    **EARS,
}
