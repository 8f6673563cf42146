"""Tiny models of real classes that hear."""

from mmrl.lab.tiny.byte_tokens import (
    SMALL,
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
from mmrl.lab.tiny.text.llms import chat_template

MARKS = {"image_token": "<|IMAGE|>", "audio_token": "<|AUDIO|>", "video_token": "<|VIDEO|>"}
MARKS |= {f"{kind}_{end}_token": f"<|{kind}_{end}|>" for kind in ("vision", "audio") for end in ("bos", "eos")}
PLACES: Kwargs = {
    f"{kind}_{end}_token_id": f"<|{kind}_{mark}|>"
    for kind in ("vision", "audio")
    for end, mark in (("start", "bos"), ("end", "eos"))
}
"""Name in a config -> the mark around pictures, clips and sounds."""


def whisper(mels: int = 16, frames: int = 100, longest: int = 3) -> HubObject:
    """Mel frames, as many for every sound: those of `longest` seconds."""
    hop = 16_000 // frames
    return hub("WhisperFeatureExtractor", feature_size=mels, hop_length=hop, n_fft=max(400, hop), chunk_length=longest)


def omni_processor(kind: str, tokenizer: HubObject, patches: Kwargs, ears: HubObject) -> HubObject:
    """A processor of Qwen's omni models."""
    seen = "<|vision_bos|>{}<|vision_eos|>"
    template = chat_template(seen.format("<|IMAGE|>"), seen.format("<|VIDEO|>"), audio="<|audio_bos|><|AUDIO|><|audio_eos|>")
    patches = {"merge_size": 2, "temporal_patch_size": 2, **patches}
    return processor_of(kind, tokenizer, patches, sees="Qwen2VL", feature_extractor=ears, chat_template=template)


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
    tokenizer = tokenizer or byte_tokenizer(MARKS)
    axes = rope(width // 32, width // 32, width // 16)
    eyes: Kwargs = {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "hidden_size": 32, "window_size": 56}
    eyes |= {"intermediate_size": 64, "depth": 1, "num_heads": 2, "out_hidden_size": width, "fullatt_block_indexes": [0]}
    model = model_of(
        "Qwen2_5OmniThinker",
        text_config=token_ids(tokenizer, rope_parameters=axes, hidden_size=width, intermediate_size=2 * width, **text),
        vision_config=eyes,
        audio_config={"d_model": width, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 2 * width}
        | {"num_mel_bins": mels, "output_dim": width, "n_window": 50, "max_source_positions": 1500},
        pad_token_id=tokenizer.pad_token_id,
        **ids_of(tokenizer, **PLACES, **{f"{kind}_token_index": MARKS[f"{kind}_token"] for kind in ("image", "video", "audio")}),
    )
    return model, omni_processor("Qwen2_5Omni", tokenizer, {"patch_size": 14, "size": SMALL}, whisper(mels, frames, longest))


def qwen3_omni_moe_thinker() -> Built:
    """Patches of 16 pixels merged 2 by 2; two layers of four experts, of which two work on a token, and 13 tokens a second."""
    tokenizer = byte_tokenizer(MARKS)
    axes = rope(2, 1, 1, mrope_interleaved=True)
    experts: Kwargs = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 8}
    vision: Kwargs = {"hidden_size": 32, "intermediate_size": 64, "depth": 2, "num_heads": 2, "out_hidden_size": 32}
    ears: Kwargs = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "output_dim": 32}
    model = model_of(
        "Qwen3OmniMoeThinker",
        text_config=token_ids(tokenizer, rope_parameters=axes, **experts),
        vision_config=vision | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
        audio_config=ears | {"num_mel_bins": 16, "downsample_hidden_size": 8, "max_source_positions": 1500},
        position_id_per_seconds=13,
        **ids_of(tokenizer, **PLACES, **{f"{kind}_token_id": MARKS[f"{kind}_token"] for kind in ("image", "video", "audio")}),
    )
    size: Kwargs = {"patch_size": 16, "size": {"shortest_edge": 64 * 64, "longest_edge": 128 * 128}}
    return model, omni_processor("Qwen3OmniMoe", tokenizer, size, whisper(longest=30))
