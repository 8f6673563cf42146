"""A Wan pipeline of the real classes with some 3 M weights, taught on this machine to draw small clips.

A UMT5 text encoder, an autoencoder and a transformer are trained from nothing on clips and captions that `Glides` makes up. The
transformer sees a whole latent frame as one token. Source of the classes: Wan, arXiv:2503.20314.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.data.drawn import shapes
from mmrl.data.drawn.gliding import Glides
from mmrl.lab.tiny import teaching
from mmrl.lab.tiny.byte_tokens import HubObject, Kwargs, hub
from mmrl.lab.tiny.flow import pipeline_parts
from mmrl.lab.tiny.flow.pipeline_parts import add_words, scheduler, t5, t5_tokenizer
from mmrl.lab.tiny.teaching import GeneratorStart, Noisy, Note
from mmrl.lab.tiny.text import plain_clips
from mmrl.lab.tiny.text.plain_clips import pass_clips
from mmrl.runtime.cache import Progress

PATCH, FRAMES_PER_LATENT = 2, 2
"""Of the autoencoder: pixels of a patch along a side, and frames of a latent after the first."""


@dataclass(frozen=True)
class ClipStart(GeneratorStart):
    """The settings by which a clip generator is built and taught."""

    data: Glides
    name: str = "glides"
    pool: int = 3072
    vae_steps: int = 250
    halvings: int = 3
    latents: int = 12
    layers: int = 3
    heads: int = 8
    max_tokens: int = 8
    vae_pool: int = 1024
    """Clips that the autoencoder learns from."""
    feed_forward: int = 512
    text_width: int = 64
    from_frame: bool = False
    """Goes on from a first frame, as Wan's image-to-video models do without CLIP."""

    def __post_init__(self) -> None:
        if self.data.side % 2**self.halvings or (self.data.frames - 1) % FRAMES_PER_LATENT:
            raise ValueError(
                f"clips of {self.data.frames} frames of {self.data.side} pixels cannot be cut into latents of "
                f"{FRAMES_PER_LATENT} frames and {2**self.halvings} pixels: change frames, side or halvings"
            )


def untaught(settings: ClipStart) -> HubObject:
    """A WanPipeline, or one that goes on from a first frame."""
    tokenizer = add_words(t5_tokenizer(), settings.data.words)
    frame: Kwargs = {"image_encoder": None, "image_processor": None} if settings.from_frame else {}
    return hub(
        "WanImageToVideoPipeline" if settings.from_frame else "WanPipeline",
        **frame,
        tokenizer=tokenizer,
        text_encoder=t5(tokenizer, "UMT5", settings.text_width, head=32, layers=1, heads=2),
        transformer=_transformer(settings),
        vae=_autoencoder(settings),
        scheduler=scheduler(shift=1.0),
    )


def teach(pipeline: HubObject, settings: ClipStart, progress: Progress | None = None) -> None:
    """Train first the autoencoder, then transformer and text encoder together on its latents."""
    drawn, captions = settings.data.batch(np.random.default_rng([settings.seed, 7]), settings.pool)
    clips = torch.from_numpy(drawn).permute(0, 4, 1, 2, 3).float() / 127.5 - 1
    with teaching.two_stages(settings, progress) as (first, second):
        teach_autoencoder(pipeline.vae, clips[: settings.vae_pool], settings, first)
        starts = first_frames(pipeline.vae, clips) if settings.from_frame else None
        teach_transformer(pipeline, encode_clips(pipeline.vae, clips), captions, settings, second, starts)


def teach_autoencoder(vae: HubObject, clips: Float[Tensor, "n 3 f y x"], settings: ClipStart, note: Note) -> None:
    """Learn to restore clips; then latents are given mean 0 and deviation 1."""
    coders = (lambda x: vae.encode(x).latent_dist.mode(), lambda z: decode_beyond(vae, z))
    teaching.learn_to_restore(vae, clips, settings, note, coders)
    with torch.no_grad():
        z = torch.cat([vae.encode(chunk).latent_dist.mode() for chunk in clips[:512].split(64)])
    mean, std = z.mean((0, 2, 3, 4)), z.std((0, 2, 3, 4)).clamp(min=1e-3)
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())


def decode_beyond(vae: HubObject, z: Float[Tensor, "n c f h w"]) -> Float[Tensor, "n 3 frames y x"]:
    """`vae.decode` without its last cut to [-1, 1], through which no gradient comes back."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

    vae.clear_cache()
    x, out = vae.post_quant_conv(z), list[Tensor]()
    for frame in range(z.shape[2]):
        places = [0]
        # only the first frame may be marked as such: diffusers' blocks count on the default elsewhere
        first = {"first_chunk": True} if frame == 0 else {}
        out.append(vae.decoder(x[:, :, frame : frame + 1], feat_cache=vae._feat_map, feat_idx=places, **first))
    vae.clear_cache()
    return unpatchify(torch.cat(out, 2), patch_size=PATCH)


def teach_transformer(
    pipeline: HubObject,
    latents: Float[Tensor, "n c f h w"],
    captions: Sequence[str],
    settings: ClipStart,
    note: Note,
    starts: Float[Tensor, "n d f h w"] | None = None,
) -> None:
    """The loss of `teaching.learn_velocities`; `starts` are further channels."""

    def velocity(batch: Noisy) -> Tensor:
        embeds = encode_captions(pipeline, batch.captions, settings.max_tokens)
        return pipeline.transformer(
            hidden_states=batch.latents if starts is None else torch.cat([batch.latents, starts[batch.rows]], 1),
            timestep=1000 * batch.sigma,
            encoder_hidden_states=embeds[batch.places],
            return_dict=False,
        )[0]

    teaching.learn_velocities((pipeline.transformer, pipeline.text_encoder), latents, captions, settings, note, velocity)


def encode_captions(pipeline: HubObject, captions: Sequence[str], length: int) -> Float[Tensor, "n t d"]:
    """Prompts as the pipeline encodes them, zeros after the text, with a gradient."""
    found = pipeline.tokenizer(list(captions), padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    hidden = pipeline.text_encoder(found.input_ids, found.attention_mask).last_hidden_state
    return hidden * found.attention_mask[..., None]


@torch.no_grad()
def encode_clips(vae: HubObject, clips: Float[Tensor, "n 3 f y x"]) -> Float[Tensor, "n c g h w"]:
    """Latents as the transformer sees them."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std))
    return torch.cat([(vae.encode(chunk).latent_dist.mode() - mean) / std for chunk in clips.split(64)])


def first_frames(vae: HubObject, clips: Float[Tensor, "n 3 f y x"]) -> Float[Tensor, "n d g h w"]:
    """First frames as the network sees them: a mask, and the latents of clips that are grey after them."""
    grey = clips.clone()
    grey[:, :, 1:] = 0
    latents = encode_clips(vae, grey)
    mask = latents.new_zeros(len(latents), FRAMES_PER_LATENT, *latents.shape[2:])
    mask[:, :, 0] = 1
    return torch.cat([mask, latents], 1)


def _transformer(settings: ClipStart) -> HubObject:
    side = settings.data.side // 2**settings.halvings
    return hub(
        "WanTransformer3DModel",
        patch_size=(1, side, side),
        num_attention_heads=settings.heads,
        attention_head_dim=32,
        in_channels=settings.latents + (FRAMES_PER_LATENT + settings.latents if settings.from_frame else 0),
        out_channels=settings.latents,
        text_dim=settings.text_width,
        freq_dim=64,
        ffn_dim=settings.feed_forward,
        num_layers=settings.layers,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )


def _autoencoder(settings: ClipStart) -> HubObject:
    """Patches of 2 x 2 pixels as in Wan 2.2; time is halved once, at the last halving of space."""
    vae = hub(
        "AutoencoderKLWan",
        base_dim=settings.vae_channels,
        z_dim=settings.latents,
        dim_mult=[1] * settings.halvings,
        num_res_blocks=1,
        temperal_downsample=[*[False] * (settings.halvings - 2), True],
        in_channels=3 * PATCH**2,
        out_channels=3 * PATCH**2,
        patch_size=PATCH,
        latents_mean=[0.0] * settings.latents,
        latents_std=[1.0] * settings.latents,
        scale_factor_temporal=FRAMES_PER_LATENT,
        scale_factor_spatial=2**settings.halvings,
    )
    pass_clips(vae)
    return vae


KIND = teaching.PipelineKind(untaught, teach, (shapes, plain_clips, pipeline_parts, teaching))
build, warm_start, fingerprint = KIND.build, KIND.warm_start, KIND.fingerprint
