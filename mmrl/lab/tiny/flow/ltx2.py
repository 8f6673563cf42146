"""LTX-2 and 2.3 of the real classes with random weights: clips of multiples of 4 pixels and 2k + 1 frames, with sound."""

import torch

from mmrl.lab.tiny.byte_tokens import HubObject, Kwargs, hub
from mmrl.lab.tiny.flow.pipeline_parts import LATENTS, scheduler
from mmrl.lab.tiny.text.vlms import draw_weights, gemma3

FRAMES: Kwargs = {"sample_rate": 1600, "mel_hop_length": 16}
"""A hundred frames of the spectrogram a second, of 8 bands; four frames and four bands are a latent."""


ROPE: Kwargs = {"rope_type": "split", "rope_double_precision": False}


def ltx2(newer: bool = False, kind: str = "LTX2Pipeline") -> HubObject:
    """Prompts may have any number of tokens, as the connectors have no registers; those of 2.3 (`newer`) have one."""
    reader, processor = gemma3()
    draw_weights(reader)
    width, layers = reader.config.text_config.hidden_size, reader.config.text_config.num_hidden_layers
    shift: Kwargs = {"base_shift": 0.95, "max_shift": 2.05, "base_image_seq_len": 1024, "max_image_seq_len": 4096}
    return hub(
        kind,
        scheduler=scheduler(use_dynamic_shifting=True, shift_terminal=0.1, **shift),
        vae=clip_autoencoder(),
        audio_vae=sound_autoencoder(),
        text_encoder=reader,
        tokenizer=processor.tokenizer,
        connectors=connectors(width, layers, newer),
        transformer=transformer(width, newer),
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


def transformer(width: int, newer: bool) -> HubObject:
    """Two blocks; that of 2.3 reads the connectors as they are, where the other one projects captions of this width."""
    switches = ("cross_attn_mod", "audio_cross_attn_mod", "gated_attn", "audio_gated_attn", "perturbed_attn")
    own: Kwargs = {"use_prompt_embeddings": False, **dict.fromkeys(switches, True)}
    return hub(
        "LTX2VideoTransformer3DModel",
        in_channels=LATENTS,
        out_channels=LATENTS,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        vae_scale_factors=(2, 4, 4),
        audio_in_channels=4,
        audio_out_channels=4,
        audio_num_attention_heads=2,
        audio_attention_head_dim=4,
        audio_cross_attention_dim=8,
        audio_sampling_rate=FRAMES["sample_rate"],
        audio_hop_length=FRAMES["mel_hop_length"],
        num_layers=2,
        caption_channels=width,
        **(own if newer else {}),
        **ROPE,
    )


def clip_autoencoder() -> HubObject:
    """Four pixels and two frames a latent, each channel with moments of its own."""
    found = hub(
        "AutoencoderKLLTX2Video",
        latent_channels=LATENTS,
        block_out_channels=(8,),
        decoder_block_out_channels=(8,),
        layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        spatio_temporal_scaling=(True,),
        decoder_spatio_temporal_scaling=(True,),
        decoder_inject_noise=(False, False),
        down_block_types=("LTX2VideoDownBlock3D",),
        downsample_type=("spatiotemporal",),
        upsample_type=("spatiotemporal",),
        upsample_residual=(False,),
        upsample_factor=(1,),
        patch_size=2,
        scaling_factor=1.5,
    )
    found.latents_mean.copy_(torch.tensor([0.1, -0.1, 0.2, 0.0]))
    found.latents_std.copy_(torch.tensor([0.9, 1.1, 0.5, 1.2]))
    return found


def sound_autoencoder() -> HubObject:
    return hub(
        "AutoencoderKLLTX2Audio",
        base_channels=4,
        ch_mult=(1,),
        num_res_blocks=1,
        resolution=32,
        latent_channels=2,
        mel_bins=8,
        mid_block_add_attention=False,
        **FRAMES,
    )


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
