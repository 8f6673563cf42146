"""Tiny pipelines that draw sounds; see pipelines.py."""

from collections.abc import Callable

import torch
from torch import nn

from mmrl.lab.tiny.byte_tokens import HubObject, byte_tokenizer, hub
from mmrl.lab.tiny.flow.pipeline_parts import network, scheduler

WIDTH, TOKENS = 16, 48
"""Of the text encoder; tokens of a prompt."""


def text_encoder(tokenizer: HubObject, width: int, layers: int = 2) -> HubObject:
    """The encoder half of a T5Gemma."""
    half = hub(
        "T5GemmaModuleConfig",
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=width // 2,
        max_position_embeddings=64,
        sliding_window=64,
        layer_types=["full_attention"] * layers,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=None,
    ).to_dict()
    return hub("T5GemmaEncoderModel", hub("T5GemmaConfig", encoder=half, decoder=half, is_encoder_decoder=False))


def duration_embedder(width: int, fourier: int = 16) -> HubObject:
    """The part that reads the length."""
    from diffusers.pipelines.stable_audio_3.modeling_stable_audio_3 import StableAudio3DurationEmbedder

    return StableAudio3DurationEmbedder(output_dim=width, fourier_dim=fourier)


@torch.no_grad()
def open_branches(vae: HubObject) -> None:
    """Draw the last layers of an autoencoder's branches: they start at 0, and waves would be the same for all latents."""
    for name, module in vae.named_modules():
        if name.endswith(("attn.to_out", "ff.proj_out")):
            nn.init.normal_(module.weight, std=0.5)


def stable_audio3() -> HubObject:
    """A Stable Audio 3 of 16 samples a second, four of them a latent."""
    tokenizer = byte_tokenizer({})
    tokenizer.padding_side, tokenizer.model_max_length = "right", TOKENS
    transformer = network("StableAudio3DiTModel")
    vae = network("AutoencoderSAME")
    open_branches(vae)
    return hub(
        "StableAudio3Pipeline",
        vae=vae,
        text_encoder=text_encoder(tokenizer, WIDTH),
        tokenizer=tokenizer,
        duration_embedder=duration_embedder(WIDTH),
        transformer=transformer,
        scheduler=scheduler(num_train_timesteps=1, shift=1.0),
    )


SOUND_PIPELINES: dict[str, Callable[[], HubObject]] = {"stable_audio3": stable_audio3}
