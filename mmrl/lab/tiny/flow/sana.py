"""Sanas of the real classes with random weights: of pictures, and of clips with Wan's autoencoder (4k + 1 frames) or LTX-2's."""

from collections.abc import Callable
from functools import partial

from mmrl.lab.tiny.byte_tokens import HubObject, hub
from mmrl.lab.tiny.flow.late_pipelines import gemma2
from mmrl.lab.tiny.flow.pipeline_parts import LATENTS, scheduler
from mmrl.lab.tiny.flow.wan import autoencoder

PLACES = 4096
"""Of the texts, which an instruction stands before."""


def sana() -> HubObject:
    """A Sana with the DPM-Solver that it is published with."""
    transformer = hub(
        "SanaTransformer2DModel",
        patch_size=1,
        in_channels=LATENTS,
        out_channels=LATENTS,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=4,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=8,
        sample_size=32,
    )
    vae = hub(
        "AutoencoderDC",
        latent_channels=LATENTS,
        attention_head_dim=2,
        encoder_block_types=("ResBlock",) * 2,
        decoder_block_types=("ResBlock",) * 2,
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), ()),
        decoder_qkv_multiscales=((), ()),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
        scaling_factor=0.41407,
    )
    reader = gemma2(max_position_embeddings=PLACES)
    return hub("SanaPipeline", vae=vae, transformer=transformer, scheduler=solver(), **reader)


def sana_video(kind: str = "SanaVideoPipeline", table: Callable[[], HubObject] | None = None) -> HubObject:
    """A SANA-Video, two blocks of linear attention over Wan's latents."""
    transformer = hub(
        "SanaVideoTransformer3DModel",
        patch_size=(1, 2, 2),
        in_channels=LATENTS,
        out_channels=LATENTS,
        num_layers=2,
        num_attention_heads=2,
        attention_head_dim=12,
        num_cross_attention_heads=2,
        cross_attention_head_dim=12,
        cross_attention_dim=24,
        caption_channels=8,
        rope_max_seq_len=32,
    )
    reader = gemma2(max_position_embeddings=PLACES)
    return hub(kind, vae=autoencoder(), transformer=transformer, scheduler=(table or solver)(), **reader)


def solver() -> HubObject:
    return hub("DPMSolverMultistepScheduler", prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)


SANA_PIPELINES: dict[str, Callable[[], HubObject]] = {
    "sana": sana,
    "sana_video": sana_video,
    "sana_i2v": partial(sana_video, "SanaImageToVideoPipeline", partial(scheduler, shift=3.0)),
}
"""Name -> how it is built."""
