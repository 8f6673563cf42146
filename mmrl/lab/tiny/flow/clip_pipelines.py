"""Tiny pipelines of clips, and Sana, whose solver two of them share; see pipelines.py.

Clips of HunyuanVideo and LTX-2 are multiples of 4 pixels and 2k + 1 frames. Those of Wan and SANA-Video: multiples of 16 pixels
(32 for `wan_5b`) and 4k + 1 frames: the autoencoder halves both sides three times and time twice.
"""

import inspect
from collections.abc import Callable
from functools import partial

import torch

from mmrl.lab.tiny.byte_tokens import HubObject, Kwargs, hub, rope
from mmrl.lab.tiny.flow.pipeline_parts import LATENTS, chat_tokenizer, gemma2, network, qwen3, scheduler, t5, t5_tokenizer
from mmrl.lab.tiny.text.vlms import draw_weights, gemma3

BOUNDARY = 0.6
"""The share of the way, from the noise, below which the second expert works; 0.875 in Wan 2.2 A14B."""
FROM_FRAME, CHANNELS = "WanImageToVideoPipeline", 2 * LATENTS + 4
"""The class of pipelines from a first frame, and what their networks take: latents, those of the frame, and a mask."""
PLACES = 4096
"""Of the texts of Sana, which an instruction stands before."""
ROPE: Kwargs = {"rope_type": "split", "rope_double_precision": False}


def wan(kind: str = "WanPipeline", **parts: object) -> HubObject:
    """A Wan 2.1 of text to video; `parts` take the place of the usual ones."""
    tokenizer = t5_tokenizer()
    usual: Kwargs = {
        "tokenizer": tokenizer,
        "text_encoder": t5(tokenizer, "UMT5"),
        "vae": parts.get("vae") or network("AutoencoderKLWan"),
        "scheduler": scheduler(shift=3.0),
        "transformer": wan_network(),
        "transformer_2": None,
    }
    return hub(kind, **(usual | parts))


def wan_network(channels: int = LATENTS, **settings: object) -> HubObject:
    return network("WanTransformer3DModel", in_channels=channels, **settings)


def wan_a14b() -> HubObject:
    """A Wan 2.2 A14B: one expert for the noisy part of the way, another one for the rest."""
    return wan(transformer_2=wan_network(), boundary_ratio=BOUNDARY)


def wan_5b() -> HubObject:
    """A Wan 2.2 5B: every token has a time, and the autoencoder takes patches of 2 x 2 pixels."""
    patches: Kwargs = {"in_channels": 12, "out_channels": 12, "patch_size": 2, "scale_factor_spatial": 16}
    return wan(vae=network("AutoencoderKLWan", **patches), expand_timesteps=True)


def wan_i2v() -> HubObject:
    """A Wan 2.1 from a first frame, which its network sees as channels and through CLIP."""
    sees: Kwargs = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    sizes: Kwargs = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    return wan(
        FROM_FRAME,
        transformer=wan_network(CHANNELS, image_dim=32, added_kv_proj_dim=24),
        image_encoder=hub("CLIPVisionModel", hub("CLIPVisionConfig", **sizes, image_size=28, patch_size=14)),
        image_processor=hub("CLIPImageProcessor", **sees),
    )


def wan_i2v_a14b() -> HubObject:
    """A Wan 2.2 A14B from a first frame: two experts, without CLIP."""
    experts: Kwargs = {"transformer": wan_network(CHANNELS), "transformer_2": wan_network(CHANNELS)}
    return wan(FROM_FRAME, **experts, boundary_ratio=BOUNDARY, image_encoder=None, image_processor=None)


def sana() -> HubObject:
    """A Sana with the DPM-Solver that it is published with."""
    parts: Kwargs = {"transformer": network("SanaTransformer2DModel"), "vae": network("AutoencoderDC")}
    return hub("SanaPipeline", scheduler=solver(), **parts, **gemma2(max_position_embeddings=PLACES))


def sana_video(kind: str = "SanaVideoPipeline", table: Callable[[], HubObject] | None = None) -> HubObject:
    """A SANA-Video, two blocks of linear attention over Wan's latents."""
    transformer, reader = network("SanaVideoTransformer3DModel"), gemma2(max_position_embeddings=PLACES)
    return hub(kind, vae=network("AutoencoderKLWan"), transformer=transformer, scheduler=(table or solver)(), **reader)


def solver() -> HubObject:
    return network("DPMSolverMultistepScheduler")


def hunyuan15(kind: str = "HunyuanVideo15Pipeline", task: str = "t2v", **parts: object) -> HubObject:
    """Its guider keeps guidance 3; `parts` are further ones."""
    from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import HunyuanVideo15Pipeline
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

    reads = inspect.signature(HunyuanVideo15Pipeline._get_mllm_prompt_embeds).parameters
    tokenizer = chat_tokenizer("system\n", reads["system_message"].default)
    ids: Kwargs = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text = {**qwen3(tokenizer, 3), **ids, "rope_parameters": rope(1, 1, 2), "max_position_embeddings": 2048}
    byt5 = hub("T5Config", d_model=32, d_kv=4, d_ff=16, num_layers=2, num_heads=2, vocab_size=384, feed_forward_proj="gated-gelu")
    return hub(
        kind,
        transformer=network("HunyuanVideo15Transformer3DModel", task_type=task),
        vae=network("AutoencoderKLHunyuanVideo15"),
        scheduler=scheduler(shift=7.0),
        text_encoder=Qwen2_5_VLTextModel(Qwen2_5_VLTextConfig(**text)),
        tokenizer=tokenizer,
        text_encoder_2=hub("T5EncoderModel", byt5),
        tokenizer_2=hub("ByT5Tokenizer"),
        guider=hub("ClassifierFreeGuidance", guidance_scale=3.0),
        **parts,
    )


def hunyuan15_i2v() -> HubObject:
    """One that goes on from a first frame, which a SigLIP sees as 2 x 2 tokens."""
    sizes: Kwargs = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    siglip = hub("SiglipVisionModel", hub("SiglipVisionConfig", **sizes, image_size=28, patch_size=14))
    sees = hub("SiglipImageProcessor", size={"height": 28, "width": 28})
    return hunyuan15("HunyuanVideo15ImageToVideoPipeline", "i2v", image_encoder=siglip, feature_extractor=sees)


def ltx2(newer: bool = False, kind: str = "LTX2Pipeline") -> HubObject:
    """An LTX-2: prompts may have any number of tokens, as the connectors have no registers; those of 2.3 (`newer`) have one."""
    reader, processor = gemma3()
    draw_weights(reader)
    width, layers = reader.config.text_config.hidden_size, reader.config.text_config.num_hidden_layers
    shift: Kwargs = {"base_shift": 0.95, "max_shift": 2.05, "base_image_seq_len": 1024, "max_image_seq_len": 4096}
    return hub(
        kind,
        scheduler=scheduler(use_dynamic_shifting=True, shift_terminal=0.1, **shift),
        vae=ltx2_autoencoder(),
        audio_vae=network("AutoencoderKLLTX2Audio"),
        text_encoder=reader,
        tokenizer=processor.tokenizer,
        connectors=connectors(width, layers, newer),
        transformer=ltx2_network(width, newer),
        vocoder=vocoder(newer),
    )


def connectors(width: int, layers: int, newer: bool) -> HubObject:
    """Two, which read the embeddings and all layers of a text encoder of this width; those of 2.3 are as wide as their media."""
    from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors

    each: Kwargs = {"num_attention_heads": 4, "num_layers": 1, "num_learnable_registers": 1 if newer else None}
    own: Kwargs = {"per_modality_projections": True, "video_gated_attn": True, "audio_gated_attn": True, "proj_bias": True}
    clip, sound = (16, 8) if newer else (width, width)
    return LTX2TextConnectors(
        caption_channels=width,
        text_proj_in_factor=layers + 1,
        connector_rope_base_seq_len=32,
        video_connector_attention_head_dim=clip // 4,
        audio_connector_attention_head_dim=sound // 4,
        video_hidden_dim=clip,
        audio_hidden_dim=sound,
        **{f"{part}_connector_{name}": value for part in ("video", "audio") for name, value in each.items()},
        **(own if newer else {}),
        **ROPE,
    )


def ltx2_network(width: int, newer: bool) -> HubObject:
    """Two blocks; that of 2.3 reads the connectors as they are, where the other one projects captions of this width."""
    switches = ("cross_attn_mod", "audio_cross_attn_mod", "gated_attn", "audio_gated_attn", "perturbed_attn")
    own: Kwargs = {"use_prompt_embeddings": False, **dict.fromkeys(switches, True)}
    return network("LTX2VideoTransformer3DModel", caption_channels=width, **(own if newer else {}))


def ltx2_autoencoder() -> HubObject:
    """Four pixels and two frames a latent, each channel with moments of its own."""
    found = network("AutoencoderKLLTX2Video")
    found.latents_mean.copy_(torch.tensor([0.1, -0.1, 0.2, 0.0]))
    found.latents_std.copy_(torch.tensor([0.9, 1.1, 0.5, 1.2]))
    return found


def vocoder(newer: bool) -> HubObject:
    """Four samples a frame; that of 2.3 doubles the rate again, from the spectrum of its own sound."""
    from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder, LTX2VocoderWithBWE

    layers: Kwargs = {
        "in_channels": 2 * 8,
        "hidden_channels": 16,
        "upsample_kernel_sizes": [4, 4],
        "upsample_factors": [2, 2],
        "resnet_kernel_sizes": [3],
        "resnet_dilations": [[1, 3, 5]],
    }
    if not newer:
        return LTX2Vocoder(output_sampling_rate=400, **layers)
    upper: Kwargs = {f"bwe_{name}": value for name, value in layers.items()} | {"bwe_upsample_factors": [4, 2]}
    window: Kwargs = {"filter_length": 16, "hop_length": 4, "window_length": 16, "num_mel_channels": 8}
    return LTX2VocoderWithBWE(input_sampling_rate=400, output_sampling_rate=800, **layers, **upper, **window)


CLIP_PIPELINES: dict[str, Callable[[], HubObject]] = {
    "sana": sana,
    "sana_video": sana_video,
    "sana_i2v": partial(sana_video, "SanaImageToVideoPipeline", partial(scheduler, shift=3.0)),
    "hunyuan15": hunyuan15,
    "hunyuan15_i2v": hunyuan15_i2v,
    "ltx2": ltx2,
    "ltx23": partial(ltx2, newer=True),
    "ltx2_i2v": partial(ltx2, kind="LTX2ImageToVideoPipeline"),
    "wan": wan,
    "wan_5b": wan_5b,
    "wan_a14b": wan_a14b,
    "wan_i2v": wan_i2v,
    "wan_i2v_a14b": wan_i2v_a14b,
}
"""Name -> how it is built."""
