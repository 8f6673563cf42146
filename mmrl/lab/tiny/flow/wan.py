"""Wan pipelines of the real classes with some 0.05 M random weights: one network, a time per token, two experts, a first frame.

Clips are small multiples of 16 pixels (32 for `wan_5b`) with 4k + 1 frames: the autoencoders halve both sides three times and
time twice.
"""

from collections.abc import Callable

from mmrl.lab.tiny.byte_tokens import HubObject, Kwargs, hub
from mmrl.lab.tiny.flow.pipeline_parts import LATENTS, scheduler, t5, t5_tokenizer

BOUNDARY = 0.6
"""The share of the way, from the noise, below which the second expert works; 0.875 in Wan 2.2 A14B."""
FROM_FRAME, CHANNELS = "WanImageToVideoPipeline", 2 * LATENTS + 4
"""The class of pipelines from a first frame, and what their networks take: latents, those of the frame, and a mask."""
NO_CLIP: Kwargs = {"image_encoder": None, "image_processor": None}


def wan_a14b() -> HubObject:
    """A Wan 2.2 A14B: one expert for the noisy part of the way, another one for the rest."""
    return pipeline(transformer_2=transformer(), boundary_ratio=BOUNDARY)


def wan_5b() -> HubObject:
    """A Wan 2.2 5B: every token has a time, and the autoencoder takes patches of 2 x 2 pixels."""
    return pipeline(
        vae=autoencoder(in_channels=12, out_channels=12, patch_size=2, scale_factor_spatial=16), expand_timesteps=True
    )


def wan_i2v() -> HubObject:
    """A Wan 2.1 from a first frame, which its network sees as channels and through CLIP."""
    sees: Kwargs = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    sizes: Kwargs = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    return pipeline(
        FROM_FRAME,
        transformer=transformer(in_channels=CHANNELS, image_dim=32, added_kv_proj_dim=24),
        image_encoder=hub("CLIPVisionModel", hub("CLIPVisionConfig", **sizes, image_size=28, patch_size=14)),
        image_processor=hub("CLIPImageProcessor", **sees),
    )


def wan_i2v_a14b() -> HubObject:
    """A Wan 2.2 A14B from a first frame: two experts, without CLIP."""
    early, late = transformer(in_channels=CHANNELS), transformer(in_channels=CHANNELS)
    return pipeline(FROM_FRAME, transformer=early, transformer_2=late, boundary_ratio=BOUNDARY, **NO_CLIP)


def pipeline(kind: str = "WanPipeline", **parts: object) -> HubObject:
    """A Wan 2.1 of text to video; `parts` take the place of the usual ones."""
    tokenizer = t5_tokenizer()
    usual: Kwargs = {
        "tokenizer": tokenizer,
        "text_encoder": t5(tokenizer, "UMT5"),
        "vae": parts.get("vae") or autoencoder(),
        "scheduler": scheduler(shift=3.0),
        "transformer": transformer(),
        "transformer_2": None,
    }
    return hub(kind, **(usual | parts))


def transformer(**settings: object) -> HubObject:
    usual: Kwargs = {
        "patch_size": (1, 2, 2),
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "in_channels": LATENTS,
        "out_channels": LATENTS,
        "text_dim": 32,
        "freq_dim": 32,
        "ffn_dim": 32,
        "num_layers": 2,
        "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads",
        "rope_max_seq_len": 32,
    }
    return hub("WanTransformer3DModel", **(usual | settings))


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
    return hub("AutoencoderKLWan", **(usual | settings))


WAN_PIPELINES: dict[str, Callable[[], HubObject]] = {
    "wan": pipeline,
    "wan_5b": wan_5b,
    "wan_a14b": wan_a14b,
    "wan_i2v": wan_i2v,
    "wan_i2v_a14b": wan_i2v_a14b,
}
"""Name -> how it is built."""
