"""Stable Diffusion 3 pipelines of the real classes with some 2 M weights, taught on this machine to draw small pictures.

Two CLIP text encoders, an autoencoder and a transformer are trained from nothing on pictures and captions that
`Pictures` makes up. Source of model and loss: Stable Diffusion 3, arXiv:2403.03206.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from mmrl.lab.tiny import teaching
from mmrl.lab.tiny.byte_tokens import HubObject, hub
from mmrl.lab.tiny.flow import pipeline_parts
from mmrl.lab.tiny.flow.pipeline_parts import add_words, clip, clip_tokenizer, read, scheduler
from mmrl.lab.tiny.teaching import GeneratorStart, Noisy, Note


@runtime_checkable
class Pictures(Protocol):
    """Endless pictures with captions."""

    @property
    def words(self) -> Sequence[str]:
        """Every word of the captions; each becomes one token. Other text is spelled letter by letter."""
        ...

    def batch(self, rng: np.random.Generator, size: int) -> tuple[NDArray[np.uint8], list[str]]:
        """Pixels (size, height, width, 3) and their captions."""
        ...

    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...


@dataclass(frozen=True)
class WarmStart(GeneratorStart):
    """The settings by which a generator is built and taught."""

    data: Pictures
    name: str = "shapes"
    patch: int = 4
    """Latents per token along both sides; few tokens are fast."""

    def __post_init__(self) -> None:
        multiple = 2**self.halvings * self.patch
        if self.data.height % multiple or self.data.width % multiple:
            raise ValueError(
                f"pictures of {self.data.width} x {self.data.height} pixels cannot be cut into tokens of {multiple}: "
                "change their size, halvings or patch"
            )


def untaught(settings: WarmStart) -> HubObject:
    """A StableDiffusion3Pipeline without T5."""
    first, second = (fit_tokenizer(clip_tokenizer(), settings) for _ in range(2))
    return hub(
        "StableDiffusion3Pipeline",
        transformer=_transformer(settings),
        scheduler=scheduler(shift=1.0),
        vae=autoencoder(settings),
        text_encoder=clear_clip("CLIPTextModelWithProjection", first, 32, settings),
        tokenizer=first,
        text_encoder_2=clear_clip("CLIPTextModelWithProjection", second, 32, settings),
        tokenizer_2=second,
        text_encoder_3=None,
        tokenizer_3=None,
    )


def lesson(pipeline: HubObject, settings: WarmStart, first: Note, second: Note) -> None:
    """See PipelineKind."""
    pictures, captions = settings.data.batch(np.random.default_rng([settings.seed, 7]), settings.pool)
    images = pixels_of(pictures)
    teach_autoencoder(pipeline.vae, images, settings, first)

    def velocity(batch: Noisy) -> Tensor:
        embeds, pooled = encode_captions(pipeline, batch.captions)
        return pipeline.transformer(
            hidden_states=batch.latents,
            timestep=1000 * batch.sigma,
            encoder_hidden_states=embeds[batch.places],
            pooled_projections=pooled[batch.places],
            return_dict=False,
        )[0]

    trained = (pipeline.transformer, pipeline.text_encoder, pipeline.text_encoder_2)
    teaching.learn_velocities(trained, encode_images(pipeline.vae, images), captions, settings, second, velocity)


def pixels_of(pictures: NDArray[np.uint8] | UInt8[Tensor, "n y x 3"]) -> Float[Tensor, "n 3 y x"]:
    """Bytes as the autoencoder takes them, in [-1, 1]."""
    return torch.as_tensor(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1


def teach_autoencoder(vae: HubObject, images: Tensor, settings: WarmStart, note: Note) -> None:
    """Learn to restore pictures; then latents are given mean 0 and deviation 1."""
    coders = (lambda x: vae.encode(x).latents, lambda z: vae.decode(z).sample)
    teaching.learn_to_restore(vae, images, settings, note, coders)
    latents = encode_images(vae, images[:1024])
    vae.register_to_config(shift_factor=latents.mean().item(), scaling_factor=1 / latents.std().item())


def encode_captions(pipeline: HubObject, captions: Sequence[str]) -> tuple[Float[Tensor, "n t d"], Float[Tensor, "n p"]]:
    """Prompts as the pipeline encodes them, with a gradient: both encoders' hidden states side by side, and both projections."""
    ids = read(pipeline.tokenizer, captions).input_ids  # both tokenizers are alike
    found = [encoder(ids, output_hidden_states=True) for encoder in (pipeline.text_encoder, pipeline.text_encoder_2)]
    embeds = torch.cat([out.hidden_states[-2] for out in found], dim=-1)
    return embeds, torch.cat([out.text_embeds for out in found], dim=-1)


@torch.no_grad()
def encode_images(vae: HubObject, images: Float[Tensor, "n 3 y x"]) -> Float[Tensor, "n c h w"]:
    """Latents as the transformer sees them."""
    latents = torch.cat([vae.encode(chunk).latents for chunk in images.split(256)])
    return (latents - vae.config.shift_factor) * vae.config.scaling_factor


def fit_tokenizer(tokenizer: HubObject, settings: WarmStart) -> HubObject:
    """Let each word of the captions be one token, and captions end where the settings say; return the tokenizer."""
    tokenizer.model_max_length = settings.max_tokens
    return add_words(tokenizer, settings.data.words)


def clear_clip(kind: str, tokenizer: HubObject, width: int, settings: WarmStart) -> HubObject:
    """A text encoder of CLIP whose words differ from the start."""
    encoder = clip(kind, tokenizer, width, heads=2, tokens=settings.max_tokens)
    # CLIP starts words at 0.02: too faint for the transformer to tell them apart within minutes.
    nn.init.normal_(encoder.get_input_embeddings().weight, std=1.0)
    return encoder


def autoencoder(settings: WarmStart) -> HubObject:
    """An autoencoder without normalization and sampling: a dozen seconds are enough."""
    stages = settings.halvings + 1
    vae = hub(
        "AutoencoderTiny",
        encoder_block_out_channels=(settings.vae_channels,) * stages,
        decoder_block_out_channels=(settings.vae_channels,) * stages,
        num_encoder_blocks=(0, *(1,) * settings.halvings),
        num_decoder_blocks=(*(1,) * settings.halvings, 0),
        latent_channels=settings.latents,
    )
    pass_colours(vae)
    return vae


@torch.no_grad()
def pass_colours(vae: HubObject) -> None:
    """Let three channels carry the plain picture: from random weights it takes many times as long until any colour is seen."""
    for half in (vae.encoder, vae.decoder):
        for layer in half.layers:
            if isinstance(layer, nn.Conv2d):
                layer.weight[:3] = 0
                for channel in range(3):
                    # a convolution that halves takes the mean of 2 x 2 pixels
                    window = slice(1, layer.stride[0] + 1)
                    layer.weight[channel, channel, window, window] = 1 / layer.stride[0] ** 2
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
            elif hasattr(layer, "conv"):
                nn.init.zeros_(layer.conv[-1].weight)
                nn.init.zeros_(layer.conv[-1].bias)


def _transformer(settings: WarmStart) -> HubObject:
    rows, columns = (length // 2**settings.halvings // settings.patch for length in (settings.data.height, settings.data.width))
    return hub(
        "SD3Transformer2DModel",
        sample_size=max(rows, columns) * settings.patch,
        patch_size=settings.patch,
        in_channels=settings.latents,
        out_channels=settings.latents,
        num_layers=settings.layers,
        num_attention_heads=settings.heads,
        attention_head_dim=32,
        caption_projection_dim=32 * settings.heads,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        pos_embed_max_size=max(rows, columns),
        qk_norm="rms_norm",
    )


KIND = teaching.PipelineKind(untaught, lesson, (pipeline_parts, teaching))
