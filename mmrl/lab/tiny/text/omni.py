"""Tiny models of real classes that hear."""

from mmrl.lab.tiny.byte_tokens import Built, HubObject, Kwargs, byte_tokenizer, token_ids
from mmrl.lab.tiny.text.llms import chat_template

MARKS = {"image_token": "<|IMAGE|>", "audio_token": "<|AUDIO|>", "video_token": "<|VIDEO|>"}
MARKS |= {f"{kind}_{end}_token": f"<|{kind}_{end}|>" for kind in ("vision", "audio") for end in ("bos", "eos")}


def qwen2_5_omni_thinker(
    width: int = 32, mels: int = 16, frames: int = 100, longest: int = 30, tokenizer: HubObject = None, **text: object
) -> Built:
    """Patches of 14 pixels merged 2 by 2; two layers that listen to windows of 100 mel frames, and 25 tokens for each.

    Args:
        width: of the text part and of the audio tower.
        mels: bins of a mel frame.
        frames: mel frames of a second.
        longest: seconds of a sound at most.
        tokenizer: one that knows MARKS, in place of one of bytes.
        text: more of the text part's settings.
    """
    from transformers import (
        Qwen2_5OmniProcessor,
        Qwen2_5OmniThinkerConfig,
        Qwen2_5OmniThinkerForConditionalGeneration,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        WhisperFeatureExtractor,
    )

    tokenizer = tokenizer or byte_tokenizer(MARKS)
    ids = {name: tokenizer.convert_tokens_to_ids(mark) for name, mark in MARKS.items()}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [width // 32, width // 32, width // 16]}
    patches: Kwargs = {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
    sizes: Kwargs = {"hidden_size": width, "intermediate_size": 2 * width}
    marks: Kwargs = {
        "pad_token_id": tokenizer.pad_token_id,
        "audio_start_token_id": ids["audio_bos_token"],
        "audio_end_token_id": ids["audio_eos_token"],
        "vision_start_token_id": ids["vision_bos_token"],
        "vision_end_token_id": ids["vision_eos_token"],
        **{f"{kind}_token_index": ids[f"{kind}_token"] for kind in ("image", "video", "audio")},
    }
    config = Qwen2_5OmniThinkerConfig(
        text_config=token_ids(tokenizer, rope_parameters=rope, **sizes, **text),
        vision_config={**patches, "hidden_size": 32, "intermediate_size": 64, "depth": 1, "num_heads": 2, "window_size": 56}
        | {"out_hidden_size": width, "fullatt_block_indexes": [0]},
        audio_config={"d_model": width, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 2 * width}
        | {"num_mel_bins": mels, "output_dim": width, "n_window": 50, "max_source_positions": 1500},
        **marks,
    )
    pictures: Kwargs = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    pictures |= {"size": {"shortest_edge": 56 * 56, "longest_edge": 112 * 112}}
    seen = "<|vision_bos|>{}<|vision_eos|>"
    processor = Qwen2_5OmniProcessor(
        image_processor=Qwen2VLImageProcessor(**pictures),
        video_processor=Qwen2VLVideoProcessor(**pictures),
        feature_extractor=WhisperFeatureExtractor(
            feature_size=mels, hop_length=16_000 // frames, n_fft=max(400, 16_000 // frames), chunk_length=longest
        ),
        tokenizer=tokenizer,
        chat_template=chat_template(
            seen.format("<|IMAGE|>"), seen.format("<|VIDEO|>"), audio="<|audio_bos|><|AUDIO|><|audio_eos|>"
        ),
    )
    return Qwen2_5OmniThinkerForConditionalGeneration(config), processor


def qwen3_omni_moe_thinker() -> Built:
    """Patches of 16 pixels merged 2 by 2; two layers of four experts, of which two work on a token, and 13 tokens a second."""
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        Qwen3OmniMoeProcessor,
        Qwen3OmniMoeThinkerConfig,
        Qwen3OmniMoeThinkerForConditionalGeneration,
        WhisperFeatureExtractor,
    )

    tokenizer = byte_tokenizer(MARKS)
    ids = {name: tokenizer.convert_tokens_to_ids(mark) for name, mark in MARKS.items()}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    experts: Kwargs = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8}
    vision: Kwargs = {"hidden_size": 32, "intermediate_size": 64, "depth": 2, "num_heads": 2, "out_hidden_size": 32}
    vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    ears: Kwargs = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "output_dim": 32}
    ends = {
        "audio_end_token_id": ids["audio_eos_token"],
        "vision_start_token_id": ids["vision_bos_token"],
        "vision_end_token_id": ids["vision_eos_token"],
    }
    config = Qwen3OmniMoeThinkerConfig(
        text_config=token_ids(tokenizer, rope_parameters=rope, **experts),
        vision_config=vision,
        audio_config=ears | {"num_mel_bins": 16, "downsample_hidden_size": 8, "max_source_positions": 1500},
        audio_start_token_id=ids["audio_bos_token"],
        position_id_per_seconds=13,
        **{f"{kind}_token_id": ids[f"{kind}_token"] for kind in ("image", "video", "audio")},
        **ends,
    )
    pictures: Kwargs = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    pictures |= {"size": {"shortest_edge": 64 * 64, "longest_edge": 128 * 128}}
    seen = "<|vision_bos|>{}<|vision_eos|>"
    processor = Qwen3OmniMoeProcessor(
        image_processor=Qwen2VLImageProcessor(**pictures),
        video_processor=Qwen2VLVideoProcessor(**pictures),
        feature_extractor=WhisperFeatureExtractor(feature_size=16, hop_length=160, n_fft=400, chunk_length=30),
        tokenizer=tokenizer,
        chat_template=chat_template(
            seen.format("<|IMAGE|>"), seen.format("<|VIDEO|>"), audio="<|audio_bos|><|AUDIO|><|audio_eos|>"
        ),
    )
    return Qwen3OmniMoeThinkerForConditionalGeneration(config), processor
