"""A Stable Audio 3 pipeline of the real classes with some 0.3 M weights, taught on this machine to draw sounds of a second.

A T5Gemma encoder, an autoencoder and a transformer are trained from nothing on sounds and captions that `Tones` makes up. Source
of the classes: Stable Audio 3, arXiv:2605.17991 (the autoencoder).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmrl.data.drawn import shapes
from mmrl.data.drawn.sounds.tones import RATE, SECONDS, Tones
from mmrl.lab.tiny import teaching
from mmrl.lab.tiny.byte_tokens import HubObject, byte_tokenizer, hub
from mmrl.lab.tiny.flow import pipeline_parts
from mmrl.lab.tiny.flow.pipeline_parts import add_words, network, scheduler
from mmrl.lab.tiny.teaching import GeneratorStart, Noisy, Note

PATCH = 1000
"""Samples of a latent: an eighth of a second, in which every pitch turns a whole number of times."""


@dataclass(frozen=True)
class SoundStart(GeneratorStart):
    """The settings by which a generator of sounds is built and taught."""

    data: Tones = field(default_factory=Tones)
    name: str = "tones"
    pool: int = 2048
    vae_steps: int = 250
    steps: int = 750
    lr: float = 2e-3
    noise: float = 0.5
    latents: int = 8
    layers: int = 3
    heads: int = 2
    memory: int = 8
    """Tokens that stand before the latents, which tell their places by them."""
    width: int = 64
    """Of the transformer."""
    vae_width: int = 48
    text_width: int = 32
    max_tokens: int = 12


def untaught(settings: SoundStart) -> HubObject:
    """A StableAudio3Pipeline of one channel."""
    tokenizer = add_words(byte_tokenizer({}), settings.data.words)
    tokenizer.padding_side, tokenizer.model_max_length = "right", settings.max_tokens
    text = settings.text_width
    transformer = hub(
        "StableAudio3DiTModel",
        io_channels=settings.latents,
        embed_dim=settings.width,
        depth=settings.layers,
        num_heads=settings.heads,
        cond_token_dim=text,
        global_cond_dim=text,
        local_add_cond_dim=1,
        timestep_features_dim=64,
        ff_mult=2,
        num_memory_tokens=settings.memory,
        # the difference of two attentions that begin alike is nearly nothing for long
        use_differential_attention=False,
    )
    raise_text(transformer)
    raise_places(transformer)
    reader = text_encoder(tokenizer, text, layers=1)
    # as CLIP's in the demo of pictures: words that begin faint all look alike for minutes
    nn.init.normal_(reader.get_input_embeddings().weight, std=1.0)
    return hub(
        "StableAudio3Pipeline",
        vae=_autoencoder(settings),
        text_encoder=reader,
        tokenizer=tokenizer,
        duration_embedder=duration_embedder(text),
        transformer=transformer,
        scheduler=scheduler(num_train_timesteps=1, shift=1.0),
    )


@torch.no_grad()
def raise_text(transformer: HubObject) -> None:
    """Let the text be heard: through four layers of torch's usual scale it reaches the blocks at a hundredth of its size."""
    layers = [layer for layer in transformer.to_cond_embed if isinstance(layer, nn.Linear)]
    for layer in (*layers, *(block.cross_attn.to_out for block in transformer.transformer_blocks)):
        layer.weight *= 3


@torch.no_grad()
def raise_places(transformer: HubObject) -> None:
    """Let latents see where they stand: the first block asks alike of all of them, and sharply, so that what it hears from the
    tokens before them depends on how far away those are; else less than a thousandth of what it passes on tells of place."""
    first = transformer.transformer_blocks[0]
    _, shift, *_ = first.to_scale_shift_gate.chunk(6)
    shift *= 16
    first.self_attn.q_norm.gamma *= 4
    first.self_attn.to_out.weight *= 6


def lesson(pipeline: HubObject, settings: SoundStart, first: Note, second: Note) -> None:
    """See PipelineKind; latents are given deviation 1."""
    drawn, captions = settings.data.batch(np.random.default_rng([settings.seed, 7]), settings.pool)
    waves, vae = torch.from_numpy(drawn)[:, None], pipeline.vae
    coders = (lambda x: vae.encode(x).latents, lambda z: vae.decode(z).sample)
    teaching.learn_to_restore(vae, waves, settings, first, coders)
    vae.bottleneck.running_std.mul_(encode_waves(vae, waves[:512]).std())

    def velocity(batch: Noisy) -> Tensor:
        embeds, mask, length = encode_captions(pipeline, batch.captions)
        return pipeline.transformer(
            batch.latents,
            batch.sigma,
            encoder_hidden_states=embeds[batch.places],
            global_hidden_states=length[batch.places],
            encoder_attention_mask=mask[batch.places],
            return_dict=False,
        )[0]

    trained = (pipeline.transformer, pipeline.text_encoder)
    teaching.learn_velocities(trained, encode_waves(vae, waves), captions, settings, second, velocity)


@torch.no_grad()
def encode_waves(vae: HubObject, waves: Float[Tensor, "n 1 samples"]) -> Float[Tensor, "n c l"]:
    """Latents as the transformer sees them."""
    return torch.cat([vae.encode(chunk).latents for chunk in waves.split(128)])


def encode_captions(pipeline: HubObject, captions: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts as the pipeline encodes them, with a gradient: embeddings (n, t, d), mask (n, t), and the length (n, d)."""
    embeds, mask = pipeline.encode_prompt(list(captions), torch.device("cpu"), 1)
    length = pipeline.encode_duration(SECONDS, torch.device("cpu"), 1, len(captions)).detach()
    return (*pipeline.prepare_cross_attention(embeds, mask, length), length)


def _autoencoder(settings: SoundStart) -> HubObject:
    """One latent for every patch."""
    vae = hub(
        "AutoencoderSAME",
        audio_channels=1,
        patch_size=PATCH,
        encoder_channels=settings.vae_width,
        encoder_c_mults=(1,),
        encoder_strides=(1,),
        encoder_transformer_depths=(1,),
        latent_dim=settings.latents,
        use_differential_attention=False,
        dim_heads=settings.vae_width,
        ff_mult=2,
        sampling_rate=RATE,
    )
    pass_sounds(vae)
    return vae


@torch.no_grad()
def pass_sounds(vae: HubObject) -> None:
    """Let attention pass on what it sees, nearly unbent: its last layers start at 0, and no gradient would reach the patches."""
    modules: list[HubObject] = list(vae.modules())
    for module in modules:
        if hasattr(module, "to_qkv"):
            width = module.to_out.weight.shape[0]
            module.to_qkv.weight[-width:] = torch.eye(width)
            module.to_out.weight.copy_(torch.eye(width))
        elif hasattr(module, "norm_attn") and hasattr(module.norm_attn, "alpha"):
            module.norm_attn.alpha.fill_(0.5)
            module.norm_attn.gamma.fill_(2.0)


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
    """One with random weights, of 16 samples a second, four of them a latent."""
    tokenizer, width = byte_tokenizer({}), 16
    tokenizer.padding_side, tokenizer.model_max_length = "right", 48
    transformer = network("StableAudio3DiTModel")
    vae = network("AutoencoderSAME")
    open_branches(vae)
    return hub(
        "StableAudio3Pipeline",
        vae=vae,
        text_encoder=text_encoder(tokenizer, width),
        tokenizer=tokenizer,
        duration_embedder=duration_embedder(width),
        transformer=transformer,
        scheduler=scheduler(num_train_timesteps=1, shift=1.0),
    )


KIND = teaching.PipelineKind(untaught, lesson, (shapes, pipeline_parts, teaching))
