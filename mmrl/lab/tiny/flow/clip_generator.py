"""A Wan pipeline of the real classes with some 3 M weights, taught on this machine to draw small clips.

A UMT5 text encoder, an autoencoder and a transformer are trained from nothing on clips and captions that `Glides` makes up. The
transformer sees a whole latent frame as one token. Source of the classes: Wan, arXiv:2503.20314.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmrl.data.drawn import shapes
from mmrl.data.drawn.gliding import Glides
from mmrl.lab.tiny import teaching
from mmrl.lab.tiny.byte_tokens import HubObject, Kwargs, hub
from mmrl.lab.tiny.flow import pipeline_parts
from mmrl.lab.tiny.flow.pipeline_parts import add_words, read, scheduler, t5, t5_tokenizer
from mmrl.lab.tiny.teaching import GeneratorStart, Noisy, Note

NOW, CONSTANT, EARLIER, SIGNALS = 0, 6, 7, 13
LEVEL = 10.0
"""The constant."""
LAST = 2
"""The tap of a causal convolution over time that sees the present frame; 1 sees the one before."""


@torch.no_grad()
def pass_clips(vae: HubObject) -> None:
    """Let an AutoencoderKLWan hand on a smaller copy of its clip, so that minutes of training are enough.

    Thirteen channels of every layer carry signals: 0-2 the colours of the present frame and 3-5 their negatives, since
    silu(x) - silu(-x) = x undoes the last activation; 6 a constant, beside which RMS norms are nearly a fixed factor; 7-9 and
    10-12 colours and negatives of the earlier of two frames. All other channels keep their random weights and learn details.
    """
    for half in (vae.encoder, vae.decoder):
        for module in half.modules():
            pass_on(module)
        level(half.norm_out)
    open_ends(vae.encoder, vae.z_dim)
    for conv in (vae.quant_conv, vae.post_quant_conv):
        silence(conv, len(conv.weight))
        for channel in range(len(conv.weight)):
            conv.weight[channel, channel] = 1
    open_decoder(vae.decoder)


def pass_on(module: HubObject) -> None:
    """Let one block hand its signals on."""
    from diffusers.models.autoencoders import autoencoder_kl_wan as blocks

    if isinstance(module, blocks.WanResidualBlock):
        silence(module.conv2, len(module.conv2.weight))
        level(module.norm1)
        if isinstance(module.conv_shortcut, nn.Conv3d):
            silence(module.conv_shortcut, len(module.conv_shortcut.weight))
            for channel in range(min(module.in_dim, module.out_dim)):
                module.conv_shortcut.weight[channel, channel] = 1
    elif isinstance(module, blocks.WanAttentionBlock):
        silence(module.proj, len(module.proj.weight))
        level(module.norm)
    elif isinstance(module, blocks.WanResample):
        resample(module)


def resample(module: HubObject) -> None:
    """Halve by the mean of 2 x 2 pixels, double by repeating; time is folded into the earlier frame's channels, and unfolded."""
    conv, falling = module.resample[1], "down" in module.mode
    silence(conv, SIGNALS)
    for channel in range(min(SIGNALS, len(conv.weight))):
        if falling:
            conv.weight[channel, channel, 0:2, 0:2] = 0.25
        else:
            conv.weight[channel, channel, 1, 1] = 1
    if module.mode == "downsample3d":
        silence(module.time_conv, SIGNALS)
        for channel in range(EARLIER):
            module.time_conv.weight[channel, channel, LAST] = 1
        for channel in range(CONSTANT):
            module.time_conv.weight[EARLIER + channel, channel, LAST - 1] = 1
    elif module.mode == "upsample3d":
        weight = module.time_conv.weight
        nn.init.zeros_(module.time_conv.bias)
        for first, source in ((0, EARLIER), (module.dim, NOW)):
            weight[first : first + SIGNALS] = 0
            for channel in range(CONSTANT):
                weight[first + channel, source + channel, LAST] = 1
            weight[first + CONSTANT, CONSTANT, LAST] = 1


def open_ends(encoder: HubObject, latents: int) -> None:
    """Pixels to signals, and signals to the means of latents: three of the present frame, three of the earlier one."""
    silence(encoder.conv_in, SIGNALS)
    encoder.conv_in.bias[CONSTANT] = LEVEL
    for colour in range(3):
        patch = slice(4 * colour, 4 * colour + 4)
        encoder.conv_in.weight[colour, patch, LAST, 1, 1] = 0.25
        encoder.conv_in.weight[3 + colour, patch, LAST, 1, 1] = -0.25
    out = encoder.conv_out
    out.weight[:6] = 0
    out.weight[latents:] = 0
    nn.init.zeros_(out.bias)
    out.bias[latents:] = -10
    for colour in range(3):
        for latent, source in ((colour, NOW), (3 + colour, EARLIER)):
            out.weight[latent, source + colour, LAST, 1, 1] = 1
            out.weight[latent, source + 3 + colour, LAST, 1, 1] = -1


def open_decoder(decoder: HubObject) -> None:
    """Latents to signals, and signals to pixels."""
    silence(decoder.conv_in, SIGNALS)
    decoder.conv_in.bias[CONSTANT] = LEVEL
    for colour in range(3):
        for target, latent in ((NOW, colour), (EARLIER, 3 + colour)):
            decoder.conv_in.weight[target + colour, latent, LAST, 1, 1] = 1
            decoder.conv_in.weight[target + 3 + colour, latent, LAST, 1, 1] = -1
    out = decoder.conv_out
    out.weight[:, :SIGNALS] = 0
    nn.init.zeros_(out.bias)
    for colour in range(3):
        patch = slice(4 * colour, 4 * colour + 4)
        out.weight[patch, colour, LAST, 1, 1] = 1
        out.weight[patch, 3 + colour, LAST, 1, 1] = -1


def silence(conv: HubObject, rows: int) -> None:
    """Let the first output channels of a convolution see nothing yet."""
    conv.weight[:rows] = 0
    nn.init.zeros_(conv.bias)


def level(norm: HubObject) -> None:
    """Let an RMS norm over channels, one of which is LEVEL, be nearly the identity."""
    norm.gamma.fill_(LEVEL / norm.gamma.shape[0] ** 0.5)


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


def lesson(pipeline: HubObject, settings: ClipStart, first: Note, second: Note) -> None:
    """See PipelineKind; first frames are further channels."""
    drawn, captions = settings.data.batch(np.random.default_rng([settings.seed, 7]), settings.pool)
    clips = torch.from_numpy(drawn).permute(0, 4, 1, 2, 3).float() / 127.5 - 1
    teach_autoencoder(pipeline.vae, clips[: settings.vae_pool], settings, first)
    starts = first_frames(pipeline.vae, clips) if settings.from_frame else None

    def velocity(batch: Noisy) -> Tensor:
        embeds = encode_captions(pipeline, batch.captions, settings.max_tokens)
        return pipeline.transformer(
            hidden_states=batch.latents if starts is None else torch.cat([batch.latents, starts[batch.rows]], 1),
            timestep=1000 * batch.sigma,
            encoder_hidden_states=embeds[batch.places],
            return_dict=False,
        )[0]

    trained = (pipeline.transformer, pipeline.text_encoder)
    teaching.learn_velocities(trained, encode_clips(pipeline.vae, clips), captions, settings, second, velocity)


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


def encode_captions(pipeline: HubObject, captions: Sequence[str], length: int) -> Float[Tensor, "n t d"]:
    """Prompts as the pipeline encodes them, zeros after the text, with a gradient."""
    found = read(pipeline.tokenizer, captions, length)
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


KIND = teaching.PipelineKind(untaught, lesson, (shapes, pipeline_parts, teaching))
