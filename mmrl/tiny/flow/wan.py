"""Wan pipelines of the real classes with some 0.05 M random weights: one network, a time per token, or two experts.

Clips are small multiples of 16 pixels (32 for `wan_5b`) with 4k + 1 frames: the autoencoders halve both sides three times and
time twice.
"""

from collections.abc import Callable

from mmrl.tiny.byte_tokens import HubObject, Kwargs
from mmrl.tiny.flow.pipeline_parts import LATENTS, diffusers_object, scheduler, t5_tokenizer

BOUNDARY = 0.6
"""The share of the way, from the noise, below which the second expert works; 0.875 in Wan 2.2 A14B."""


def wan_a14b() -> HubObject:
    """A Wan 2.2 A14B: one expert for the noisy part of the way, another one for the rest."""
    return pipeline(transformer_2=transformer(), boundary_ratio=BOUNDARY)


def wan_5b() -> HubObject:
    """A Wan 2.2 5B: every token has a time, and the autoencoder takes patches of 2 x 2 pixels."""
    return pipeline(
        vae=autoencoder(in_channels=12, out_channels=12, patch_size=2, scale_factor_spatial=16), expand_timesteps=True
    )


def pipeline(**parts: object) -> HubObject:
    """A Wan 2.1 of text to video; `parts` take the place of the usual ones."""
    from transformers import UMT5Config, UMT5EncoderModel

    tokenizer = t5_tokenizer()
    text = UMT5Config(vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    usual: Kwargs = {
        "tokenizer": tokenizer,
        "text_encoder": UMT5EncoderModel(text),
        "vae": parts.get("vae") or autoencoder(),
        "scheduler": scheduler(shift=3.0),
        "transformer": transformer(),
        "transformer_2": None,
    }
    return diffusers_object("WanPipeline", **(usual | parts))


def transformer() -> HubObject:
    return diffusers_object(
        "WanTransformer3DModel",
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=LATENTS,
        out_channels=LATENTS,
        text_dim=32,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )


def autoencoder(**settings: object) -> HubObject:
    usual: Kwargs = {
        "base_dim": 4,
        "z_dim": LATENTS,
        "dim_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True, True],
        "latents_mean": [0.1, -0.1, 0.2, 0.0],
        "latents_std": [0.9, 1.1, 1.0, 1.2],
    }
    return diffusers_object("AutoencoderKLWan", **(usual | settings))


WAN_PIPELINES: dict[str, Callable[[], HubObject]] = {"wan": pipeline, "wan_5b": wan_5b, "wan_a14b": wan_a14b}
"""Name -> how it is built."""
