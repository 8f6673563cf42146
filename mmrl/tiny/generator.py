"""Stable Diffusion 3 pipelines of the real classes with some 2 M weights, taught on this machine to draw small pictures.

    x_sigma = (1 - sigma) x_0 + sigma noise,    loss = mean (v(x_sigma, sigma, caption) - (noise - x_0))^2

Two CLIP text encoders, an autoencoder and a transformer are trained from nothing on pictures and captions that `Examples`
makes up, so a demo needs nothing but those. Source of model and loss: Stable Diffusion 3, arXiv:2403.03206.
"""

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from mmrl.core.repeating import bit_for_bit
from mmrl.tiny import pipelines
from mmrl.tiny.keep import keep
from mmrl.tiny.pipeline_parts import clip_tokenizer, diffusers_object, scheduler
from mmrl.tiny.vlms import HubObject

Progress = Callable[[int, int, float], None]
"""Called with the step (from 1), the number of steps, and the loss; steps of the autoencoder and of the transformer."""


@runtime_checkable
class Examples(Protocol):
    """Endless pictures with captions. A frozen dataclass: its fields and its file are part of the cached model's name."""

    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def words(self) -> Sequence[str]:
        """Every word of the captions; each becomes one token. Other text is spelled letter by letter."""
        ...

    def batch(self, rng: np.random.Generator, size: int) -> tuple[NDArray[np.uint8], list[str]]:
        """Pictures (size, height, width, 3) and their captions."""
        ...


@dataclass(frozen=True)
class WarmStart:
    """The settings by which a generator is built and taught."""

    data: Examples
    name: str = "shapes"
    """The name of the cached folder."""
    seed: int = 0
    pool: int = 4096
    """Pictures drawn once and learned from again and again."""
    batch_size: int = 64
    vae_steps: int = 1000
    vae_batch_size: int = 8
    vae_lr: float = 3e-3
    steps: int = 1200
    lr: float = 1e-3
    """AdamW, 50 steps of warm-up, then a cosine down to a hundredth."""
    unlabelled: float = 0.1
    """Share of pictures learned without caption, for guidance."""
    halvings: int = 2
    """The autoencoder makes pictures 2^halvings times smaller along both sides."""
    vae_channels: int = 16
    latents: int = 4
    """Channels of a latent."""
    patch: int = 4
    """Latents per token along both sides; few tokens are fast."""
    layers: int = 4
    heads: int = 4
    """Attention heads of 32 dimensions each."""
    max_tokens: int = 10
    """The longest caption, start and end included."""

    def __post_init__(self) -> None:
        multiple = 2**self.halvings * self.patch
        if self.data.height % multiple or self.data.width % multiple:
            raise ValueError(
                f"pictures of {self.data.width} x {self.data.height} pixels cannot be cut into tokens of {multiple}: "
                "change their size, halvings or patch"
            )


@bit_for_bit()
def warm_start(settings: WarmStart, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Build, teach and save a pipeline, and return its folder; if that exists already, nothing is trained.

    The result depends on the settings alone, bit for bit on one machine; rounding may differ between machines.

    Args:
        settings: data, sizes, optimizers.
        folder: where to save; by default a folder below MMRL_CACHE (or ~/.cache/mmrl), named by a hash of settings and code.
        progress: called after every step.
    """

    def make(unfinished: Path) -> None:
        pipeline = build(settings)
        teach(pipeline, settings, progress)
        pipeline.save_pretrained(unfinished)

    return keep(folder, f"tiny-{settings.name}-{fingerprint(settings)}", "model_index.json", make)


def fingerprint(settings: WarmStart) -> str:
    """A hash of the settings, the code that draws, builds and teaches, and the versions of torch and diffusers."""
    kind = type(settings.data)
    digest = hashlib.sha256(json.dumps([kind.__qualname__, asdict(settings)], sort_keys=True).encode())
    for file in (__file__, pipelines.__file__, inspect.getfile(kind)):
        digest.update(Path(file).read_bytes())
    digest.update(f"{version('torch')} {version('diffusers')} {version('transformers')}".encode())
    return digest.hexdigest()[:12]


def build(settings: WarmStart) -> HubObject:
    """The untrained StableDiffusion3Pipeline, without T5."""
    first, second = (_tokenizer(settings) for _ in range(2))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        pipeline = diffusers_object(
            "StableDiffusion3Pipeline",
            transformer=_transformer(settings),
            scheduler=scheduler(shift=1.0),
            vae=_autoencoder(settings),
            text_encoder=_text_encoder(first, settings),
            tokenizer=first,
            text_encoder_2=_text_encoder(second, settings),
            tokenizer_2=second,
            text_encoder_3=None,
            tokenizer_3=None,
        )
    for part in (pipeline.vae, pipeline.transformer, pipeline.text_encoder, pipeline.text_encoder_2):
        part.eval()
    return pipeline


def teach(pipeline: HubObject, settings: WarmStart, progress: Progress | None = None) -> None:
    """Train first the autoencoder, then transformer and text encoders together on its latents."""
    rng = np.random.default_rng([settings.seed, 7])
    pictures, captions = settings.data.batch(rng, settings.pool)
    images = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1
    total = settings.vae_steps + settings.steps

    def note(step: int, loss: float) -> None:
        if progress is not None:
            progress(step, total, loss)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed + 1)
        teach_autoencoder(pipeline.vae, images, settings, lambda step, loss: note(step, loss))
        latents = encode_images(pipeline.vae, images)
        teach_transformer(pipeline, latents, captions, settings, lambda step, loss: note(settings.vae_steps + step, loss))


def teach_autoencoder(vae: HubObject, images: Tensor, settings: WarmStart, note: Callable[[int, float], None]) -> None:
    """Minimize the mean squared error of pictures from slightly noisy latents; then latents are given mean 0 and deviation 1."""
    optimizer = torch.optim.AdamW(vae.parameters(), lr=settings.vae_lr, weight_decay=0.0)
    for step in range(settings.vae_steps):
        _set_rate(optimizer, settings.vae_lr * _factor(step, settings.vae_steps))
        chosen = images[torch.randint(len(images), (settings.vae_batch_size,))]
        z = vae.encode(chosen).latents
        out = vae.decode(z + 0.1 * torch.randn_like(z)).sample
        # Without the second term latents may grow until the noise does not matter.
        loss = (out - chosen).square().mean() + 0.01 * z.square().mean()
        _update(optimizer, loss)
        note(step + 1, loss.item())
    latents = encode_images(vae, images[:1024])
    vae.register_to_config(shift_factor=latents.mean().item(), scaling_factor=1 / latents.std().item())


def teach_transformer(
    pipeline: HubObject, latents: Tensor, captions: Sequence[str], settings: WarmStart, note: Callable[[int, float], None]
) -> None:
    """Learn the velocity noise - data at times whose logit is normal."""
    texts = list(dict.fromkeys(["", *captions]))
    ids = caption_ids(pipeline, texts)
    index = torch.tensor([texts.index(caption) for caption in captions])
    trained = (pipeline.transformer, pipeline.text_encoder, pipeline.text_encoder_2)
    weights = [weight for part in trained for weight in part.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=settings.lr, weight_decay=0.0)
    size = settings.batch_size
    for step in range(settings.steps):
        _set_rate(optimizer, settings.lr * _factor(step, settings.steps))
        rows = torch.randint(len(latents), (size,))
        written = torch.where(torch.rand(size) < settings.unlabelled, 0, index[rows])
        sigma = torch.randn(size).sigmoid()
        noise = torch.randn_like(latents[rows])
        level = sigma[:, None, None, None]
        used, places = written.unique(return_inverse=True)
        embeds, pooled = encode_captions(pipeline, ids[used])
        velocity = pipeline.transformer(
            hidden_states=(1 - level) * latents[rows] + level * noise,
            timestep=1000 * sigma,
            encoder_hidden_states=embeds[places],
            pooled_projections=pooled[places],
            return_dict=False,
        )[0]
        loss = (velocity - (noise - latents[rows])).square().mean()
        _update(optimizer, loss)
        note(step + 1, loss.item())


def caption_ids(pipeline: HubObject, captions: Sequence[str]) -> Int[Tensor, "n t"]:
    """Token ids as the pipeline makes them; both tokenizers are alike."""
    length = pipeline.tokenizer.model_max_length
    ids = pipeline.tokenizer(list(captions), padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    return ids.input_ids


def encode_captions(pipeline: HubObject, ids: Int[Tensor, "n t"]) -> tuple[Float[Tensor, "n t d"], Float[Tensor, "n p"]]:
    """Prompts as the pipeline encodes them, with a gradient: both encoders' hidden states side by side, and both projections."""
    found = [encoder(ids, output_hidden_states=True) for encoder in (pipeline.text_encoder, pipeline.text_encoder_2)]
    embeds = torch.cat([out.hidden_states[-2] for out in found], dim=-1)
    return embeds, torch.cat([out.text_embeds for out in found], dim=-1)


@torch.no_grad()
def encode_images(vae: HubObject, images: Float[Tensor, "n 3 y x"]) -> Float[Tensor, "n c h w"]:
    """Latents as the transformer sees them."""
    latents = torch.cat([vae.encode(chunk).latents for chunk in images.split(256)])
    return (latents - vae.config.shift_factor) * vae.config.scaling_factor


def _tokenizer(settings: WarmStart) -> HubObject:
    from tokenizers import AddedToken

    tokenizer = clip_tokenizer()
    tokenizer.add_tokens([AddedToken(word, single_word=True, normalized=False) for word in settings.data.words])
    tokenizer.model_max_length = settings.max_tokens
    return tokenizer


def _text_encoder(tokenizer: HubObject, settings: WarmStart) -> HubObject:
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=32,
        max_position_embeddings=settings.max_tokens,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    encoder = CLIPTextModelWithProjection(config)
    # CLIP starts words at 0.02: too faint for the transformer to tell them apart within minutes.
    nn.init.normal_(encoder.text_model.embeddings.token_embedding.weight, std=1.0)
    return encoder


def _autoencoder(settings: WarmStart) -> HubObject:
    """An autoencoder without normalization and sampling: a dozen seconds are enough."""
    stages = settings.halvings + 1
    vae = diffusers_object(
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
    """Let three channels carry the plain picture, made smaller and larger again; the others are free to learn details.

    From random weights the autoencoder needs many times as long before it sees any colour.
    """
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
    return diffusers_object(
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


def _factor(step: int, steps: int, warmup: int = 50) -> float:
    return max(0.01, min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps)))


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([weight for group in optimizer.param_groups for weight in group["params"]], 1.0)
    optimizer.step()
