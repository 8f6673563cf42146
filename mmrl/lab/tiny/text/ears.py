"""Tiny models of real classes that hear; but for Qwen's omni models they take no pictures."""

import json
from base64 import b64encode
from pathlib import Path
from tempfile import TemporaryDirectory

from mmrl.lab.tiny.byte_tokens import (
    SMALL,
    TOWER,
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


WHISPER: Kwargs = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "num_mel_bins": 16}

SPECIAL = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> "
    "[IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
)
"""The first tokens of Mistral's vocabularies, all of which mistral-common asks for."""


def qwen2_audio(
    width: int = 32, mels: int = 16, frames: int = 100, longest: int = 3, tokenizer: HubObject = None, **text: object
) -> Built:
    """Whisper's encoder over `longest` seconds, whose padding is masked; a token of four mel frames.

    Args as those of `qwen2_5_omni_thinker`.
    """
    tokenizer = tokenizer or byte_tokenizer({}, others=["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"])
    ears = {**WHISPER, "d_model": width, "encoder_ffn_dim": 2 * width, "num_mel_bins": mels}
    model = model_of(
        "Qwen2Audio",
        audio_config={**ears, "max_source_positions": frames * longest // 2},
        text_config=token_ids(
            tokenizer, model_type="qwen2", rope_parameters=rope(), hidden_size=width, intermediate_size=2 * width, **text
        ),
        **ids_of(tokenizer, audio_token_index="<|AUDIO|>"),
    )
    template = chat_template("", audio="<|audio_bos|><|AUDIO|><|audio_eos|>")
    return model, hub("Qwen2AudioProcessor", whisper(mels, frames, longest), tokenizer, chat_template=template)


def granite_speech() -> Built:
    """A conformer over pairs of mel frames, and three queries for each window of fifteen; needs torchaudio."""
    tokenizer = byte_tokenizer({}, others=["<|audio|>"])
    ears: Kwargs = {"input_dim": 160, "num_layers": 2, "hidden_dim": 32, "num_heads": 2, "output_dim": 8, "context_size": 20}
    text = token_ids(tokenizer, model_type="granite", rope_parameters=rope())
    queries: Kwargs = {"model_type": "blip_2_qformer", "hidden_size": 32, "encoder_hidden_size": 32, "num_hidden_layers": 1}
    model = model_of(
        "GraniteSpeech",
        text_config={**text, "embedding_multiplier": 3.0, "logits_scaling": 2.0},
        encoder_config={**ears, "max_pos_emb": 32, "conv_kernel_size": 3},
        projector_config={**queries, "num_attention_heads": 2, "intermediate_size": 64},
        has_lora_adapter=False,
        **ids_of(tokenizer, audio_token_index="<|audio|>"),
    )
    ears, template = hub("GraniteSpeechFeatureExtractor"), chat_template("", audio="<|audio|>")
    return model, hub("GraniteSpeechProcessor", ears, tokenizer, chat_template=template)


def phi4_multimodal() -> Built:
    """A conformer that makes a token of eight mel frames, beside the layers that write; its eyes are not used."""
    tokenizer = byte_tokenizer({"image_token": "<|endoftext10|>", "audio_token": "<|endoftext11|>"})
    ears: Kwargs = {"hidden_size": 32, "intermediate_size": 64, "num_blocks": 2, "num_attention_heads": 2, "input_size": 16}
    ears |= {name: 32 for name in ("ext_pw_out_channel", "depthwise_separable_out_channel", "nemo_conv_channels")}
    config = hub(
        "Phi4MultimodalConfig",
        **token_ids(tokenizer, rope_parameters={**rope(), "partial_rotary_factor": 1.0}),
        audio_config={**ears, "audio_token_id": tokenizer.audio_token_id},
        vision_config={**TOWER, "image_size": 56, "crop_size": 56, "image_token_id": tokenizer.image_token_id},
    )
    eyes = hub("Phi4MultimodalImageProcessor", size={"height": 56, "width": 56})
    parts = eyes, hub("Phi4MultimodalFeatureExtractor", feature_size=16), tokenizer
    template = chat_template("<|endoftext10|>", audio="<|endoftext11|>")
    return hub("Phi4MultimodalForCausalLM", config), hub("Phi4MultimodalProcessor", *parts, chat_template=template)


def voxtral() -> Built:
    """Whisper's encoder over whole pieces of three seconds, silence included; a token of ten mel frames. Chats are written by a
    tekken.json of bytes."""
    from mmrl.policies.text.families.voxtral import tekken_processor

    with TemporaryDirectory() as folder:
        file = Path(folder) / "tekken.json"
        file.write_text(json.dumps(tekken()), encoding="utf-8")
        processor = tekken_processor(file, whisper(), piece=30)
    ears: Kwargs = {"hidden_size": 32, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = model_of(
        "Voxtral",
        audio_config={**ears, "num_mel_bins": 16, "max_source_positions": 150},
        text_config=token_ids(processor.tokenizer, model_type="llama", head_dim=8, rope_parameters=rope()),
        audio_token_id=24,
    )
    return model, processor


def tekken() -> Kwargs:
    """A file of mistral-common's seventh version: every byte is a token, after the special ones at their published places."""
    named = dict(enumerate(SPECIAL.split())) | {24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 34: "[TRANSCRIBE]"}
    special = [{"rank": i, "token_str": named.get(i, f"<SPECIAL_{i}>"), "is_control": True} for i in range(35)]
    config = {"pattern": r"\p{L}+|\p{N}|[^\p{L}\p{N}]+", "version": "v7", "num_vocab_tokens": 256}
    config |= {"default_vocab_size": 256 + len(special), "default_num_special_tokens": len(special)}
    mels = {"num_mel_bins": 16, "hop_length": 160, "window_size": 400}
    return {
        "config": config,
        "special_tokens": special,
        "vocab": [{"rank": i, "token_bytes": b64encode(bytes([i])).decode(), "token_str": None} for i in range(256)],
        "audio": {"sampling_rate": 16_000, "frame_rate": 10.0, "audio_encoding_config": mels, "chunk_length_s": 3.0},
    }


EARS = {"qwen2_audio": qwen2_audio, "granite_speech": granite_speech, "phi4_multimodal": phi4_multimodal, "voxtral": voxtral}
"""Type of transformers -> its tiny model."""
