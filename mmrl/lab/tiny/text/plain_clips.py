"""First weights of a small AutoencoderKLWan that hands on a smaller copy of its clip, so that minutes of training are enough.

Thirteen channels of every layer carry signals: 0-2 the colours of the present frame and 3-5 their negatives, since
silu(x) - silu(-x) = x undoes the last activation; 6 a constant, beside which RMS norms are nearly a fixed factor; 7-9 and 10-12
colours and negatives of the earlier of two frames. All other channels keep their random weights and learn details.
"""

import torch
from torch import nn

from mmrl.lab.tiny.byte_tokens import HubObject

NOW, CONSTANT, EARLIER, SIGNALS = 0, 6, 7, 13
LEVEL = 10.0
"""The constant."""
LAST = 2
"""The tap of a causal convolution over time that sees the present frame; 1 sees the one before."""


@torch.no_grad()
def pass_clips(vae: HubObject) -> None:
    """Set the weights of an AutoencoderKLWan with 2 x 2 pixel patches and two frames per latent, by hand."""
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
