"""FLUX.1-Kontext pipelines of the real classes with some 2 M weights, taught on this machine to edit small pictures.

    x_sigma = (1 - sigma) target + sigma noise,    loss = mean (v(x_sigma, source, sigma, instruction) - (noise - target))^2

A CLIP and a T5 text encoder, an autoencoder and a transformer are trained from nothing on the triples of `Edits`. Source of
model and loss: FLUX.1-Kontext, arXiv:2506.15742.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.data.drawn import shapes
from mmrl.data.drawn.shape_edits import Edits
from mmrl.lab.tiny import teaching
from mmrl.lab.tiny.byte_tokens import HubObject, hub
from mmrl.lab.tiny.flow import generator, pipeline_parts
from mmrl.lab.tiny.flow.generator import (
    WarmStart,
    autoencoder,
    clear_clip,
    encode_images,
    fit_tokenizer,
    pixels_of,
    teach_autoencoder,
)
from mmrl.lab.tiny.flow.pipeline_parts import clip_tokenizer, read, scheduler, t5, t5_tokenizer
from mmrl.lab.tiny.teaching import Noisy, Note

HEAD_DIM, ROPE = 16, (12, 2, 2)
"""Of attention; most of the rotation tells source from noise, since a picture has only two tokens a side."""
FROM_SOURCES = 2048
"""Sources, and as many targets, from which the autoencoder learns."""
EDITS = Edits()


@dataclass(frozen=True)
class EditorStart(WarmStart):
    """The settings by which an editor is built and taught; `layers` counts double and single blocks each."""

    data: Edits = EDITS
    name: str = "edits"
    pool: int = 8192
    batch_size: int = 32
    steps: int = 1500
    halvings: int = 3
    latents: int = 16
    patch: int = 2
    layers: int = 2
    heads: int = 8
    max_tokens: int = 8
    text_width: int = 64


def untaught(settings: EditorStart) -> HubObject:
    """A FluxKontextPipeline without an input for guidance."""
    first, second = (fit_tokenizer(tokenizer, settings) for tokenizer in (clip_tokenizer(), t5_tokenizer()))
    width = settings.text_width
    return hub(
        "FluxKontextPipeline",
        transformer=hub(
            "FluxTransformer2DModel",
            patch_size=1,
            in_channels=settings.latents * settings.patch**2,
            num_layers=settings.layers,
            num_single_layers=settings.layers,
            attention_head_dim=HEAD_DIM,
            num_attention_heads=settings.heads,
            joint_attention_dim=width,
            pooled_projection_dim=width,
            guidance_embeds=False,
            axes_dims_rope=ROPE,
        ),
        scheduler=scheduler(shift=1.0),
        vae=autoencoder(settings),
        text_encoder=clear_clip("CLIPTextModel", first, width, settings),
        tokenizer=first,
        text_encoder_2=t5(second, width=width, head=32, layers=1, heads=2),
        tokenizer_2=second,
    )


def lesson(pipeline: HubObject, settings: EditorStart, first: Note, second: Note) -> None:
    """See PipelineKind; every target is seen next to its source."""
    sources, texts, targets = settings.data.triples(np.random.default_rng([settings.seed, 7]), settings.pool)
    both = pixels_of(np.concatenate([sources[:FROM_SOURCES], targets[:FROM_SOURCES]]))
    teach_autoencoder(pipeline.vae, both, settings, first)
    shown, wanted = (tokens_of(encode_images(pipeline.vae, pixels_of(each))) for each in (sources, targets))
    places = token_places(settings)

    def velocity(batch: Noisy) -> Tensor:
        embeds, pooled = encode_texts(pipeline, batch.captions)
        return pipeline.transformer(
            hidden_states=torch.cat([batch.latents, shown[batch.rows]], 1),
            timestep=batch.sigma,
            guidance=None,
            pooled_projections=pooled[batch.places],
            encoder_hidden_states=embeds[batch.places],
            txt_ids=torch.zeros(embeds.shape[1], 3),
            img_ids=places,
            return_dict=False,
        )[0][:, : wanted.shape[1]]

    trained = (pipeline.transformer, pipeline.text_encoder, pipeline.text_encoder_2)
    teaching.learn_velocities(trained, wanted, texts, settings, second, velocity)


def encode_texts(pipeline: HubObject, texts: Sequence[str]) -> tuple[Float[Tensor, "n t d"], Float[Tensor, "n d"]]:
    """Instructions as the pipeline encodes them, with a gradient: T5's states and CLIP's summary."""
    short, long = (read(tokenizer, texts).input_ids for tokenizer in (pipeline.tokenizer, pipeline.tokenizer_2))
    return pipeline.text_encoder_2(long)[0], pipeline.text_encoder(short).pooler_output


def tokens_of(latents: Float[Tensor, "n c h w"]) -> Float[Tensor, "n tokens d"]:
    """Latents as the pipeline packs them: 2 x 2 to a token."""
    n, c, h, w = latents.shape
    return latents.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(n, h * w // 4, c * 4)


def token_places(settings: EditorStart) -> Float[Tensor, "tokens 3"]:
    """Row and column of every token of noise and source; the first number tells which of the two."""
    rows, columns = (
        torch.arange(length // 2**settings.halvings // settings.patch).float()
        for length in (settings.data.height, settings.data.width)
    )
    return torch.cat([torch.cartesian_prod(torch.tensor([which]), rows, columns) for which in (0.0, 1.0)])


KIND = teaching.PipelineKind(untaught, lesson, (shapes, generator, pipeline_parts, teaching))
