"""FLUX.1-Kontext pipelines of the real classes with some 2 M weights, taught on this machine to edit small pictures.

    x_sigma = (1 - sigma) target + sigma noise,    loss = mean (v(x_sigma, source, sigma, instruction) - (noise - target))^2

A CLIP and a T5 text encoder, an autoencoder and a transformer are trained from nothing on the triples of `Edits`. Source of
model and loss: FLUX.1-Kontext, arXiv:2506.15742.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from mmrl.core.repeating import bit_for_bit
from mmrl.data import shapes
from mmrl.data.drawn.shape_edits import Edits
from mmrl.tiny import generator
from mmrl.tiny.generator import Progress, WarmStart, encode_images, pass_colours, teach_autoencoder
from mmrl.tiny.keep import keep
from mmrl.tiny.pipeline_parts import clip_tokenizer, diffusers_object, scheduler, t5_tokenizer
from mmrl.tiny.vlms import HubObject

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


@bit_for_bit()
def warm_start(settings: EditorStart, folder: Path | None = None, progress: Progress | None = None) -> Path:
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


def fingerprint(settings: EditorStart) -> str:
    """A hash of the settings, the code that draws, builds and teaches, and the versions of torch and diffusers."""
    digest = hashlib.sha256(generator.fingerprint(settings).encode())
    for file in (__file__, shapes.__file__):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:12]


def build(settings: EditorStart) -> HubObject:
    """The untrained FluxKontextPipeline, without an input for guidance."""
    first, second = (_with_words(tokenizer, settings) for tokenizer in (clip_tokenizer(), t5_tokenizer()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        pipeline = diffusers_object(
            "FluxKontextPipeline",
            transformer=diffusers_object(
                "FluxTransformer2DModel",
                patch_size=1,
                in_channels=settings.latents * settings.patch**2,
                num_layers=settings.layers,
                num_single_layers=settings.layers,
                attention_head_dim=HEAD_DIM,
                num_attention_heads=settings.heads,
                joint_attention_dim=settings.text_width,
                pooled_projection_dim=settings.text_width,
                guidance_embeds=False,
                axes_dims_rope=ROPE,
            ),
            scheduler=scheduler(shift=1.0),
            vae=_autoencoder(settings),
            text_encoder=_clip(first, settings),
            tokenizer=first,
            text_encoder_2=_t5(second, settings),
            tokenizer_2=second,
        )
    for part in (pipeline.vae, pipeline.transformer, pipeline.text_encoder, pipeline.text_encoder_2):
        part.eval()
    return pipeline


def teach(pipeline: HubObject, settings: EditorStart, progress: Progress | None = None) -> None:
    """Train first the autoencoder, then transformer and text encoders together on its latents."""
    sources, texts, targets = settings.data.triples(np.random.default_rng([settings.seed, 7]), settings.pool)
    total = settings.vae_steps + settings.steps

    def note(step: int, loss: float) -> None:
        if progress is not None:
            progress(step, total, loss)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed + 1)
        both = pixels_of(np.concatenate([sources[:FROM_SOURCES], targets[:FROM_SOURCES]]))
        teach_autoencoder(pipeline.vae, both, settings, note)
        shown, wanted = (tokens_of(encode_images(pipeline.vae, pixels_of(each))) for each in (sources, targets))
        teach_transformer(pipeline, shown, texts, wanted, settings, lambda step, loss: note(settings.vae_steps + step, loss))


def teach_transformer(
    pipeline: HubObject,
    sources: Float[Tensor, "n tokens c"],
    texts: Sequence[str],
    targets: Float[Tensor, "n tokens c"],
    settings: EditorStart,
    note: Callable[[int, float], None],
) -> None:
    """Learn the velocity noise - target beside a source, at times whose logit is normal."""
    known = list(dict.fromkeys(["", *texts]))
    index = torch.tensor([known.index(text) for text in texts])
    trained = (pipeline.transformer, pipeline.text_encoder, pipeline.text_encoder_2)
    weights = [weight for part in trained for weight in part.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=settings.lr, weight_decay=0.0)
    size, tokens = settings.batch_size, targets.shape[1]
    places = token_places(settings)
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * rate_at(step, settings.steps)
        rows = torch.randint(len(targets), (size,))
        written = torch.where(torch.rand(size) < settings.unlabelled, 0, index[rows])
        used, chosen = written.unique(return_inverse=True)
        embeds, pooled = encode_texts(pipeline, [known[i] for i in used.tolist()])
        sigma = torch.randn(size).sigmoid()
        noise = torch.randn_like(targets[rows])
        level = sigma[:, None, None]
        velocity = pipeline.transformer(
            hidden_states=torch.cat([(1 - level) * targets[rows] + level * noise, sources[rows]], 1),
            timestep=sigma,
            guidance=None,
            pooled_projections=pooled[chosen],
            encoder_hidden_states=embeds[chosen],
            txt_ids=torch.zeros(embeds.shape[1], 3),
            img_ids=places,
            return_dict=False,
        )[0][:, :tokens]
        loss = (velocity - (noise - targets[rows])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        note(step + 1, loss.item())


def encode_texts(pipeline: HubObject, texts: Sequence[str]) -> tuple[Float[Tensor, "n t d"], Float[Tensor, "n d"]]:
    """Instructions as the pipeline encodes them, with a gradient: T5's states and CLIP's summary."""

    def ids(tokenizer: HubObject) -> Tensor:
        length = tokenizer.model_max_length
        return tokenizer(list(texts), padding="max_length", max_length=length, truncation=True, return_tensors="pt").input_ids

    return pipeline.text_encoder_2(ids(pipeline.tokenizer_2))[0], pipeline.text_encoder(ids(pipeline.tokenizer)).pooler_output


def pixels_of(pictures: NDArray[np.uint8] | UInt8[Tensor, "n y x 3"]) -> Float[Tensor, "n 3 y x"]:
    """Bytes as the autoencoder takes them, in [-1, 1]."""
    return torch.as_tensor(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1


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


def rate_at(step: int, steps: int, warmup: int = 50) -> float:
    """The share of the learning rate: warm-up, then a cosine down to a hundredth."""
    return max(0.01, min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps)))


def _with_words(tokenizer: HubObject, settings: EditorStart) -> HubObject:
    from tokenizers import AddedToken

    tokenizer.add_tokens([AddedToken(word, single_word=True, normalized=False) for word in settings.data.words])
    tokenizer.model_max_length = settings.max_tokens
    return tokenizer


def _clip(tokenizer: HubObject, settings: EditorStart) -> HubObject:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.text_width,
        intermediate_size=2 * settings.text_width,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=settings.max_tokens,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    encoder: HubObject = CLIPTextModel(config)
    # CLIP starts words at 0.02: too faint for the transformer to tell them apart within minutes.
    nn.init.normal_(encoder.get_input_embeddings().weight, std=1.0)
    return encoder


def _t5(tokenizer: HubObject, settings: EditorStart) -> HubObject:
    from transformers import T5Config, T5EncoderModel

    width = settings.text_width
    return T5EncoderModel(T5Config(vocab_size=len(tokenizer), d_model=width, d_kv=32, d_ff=2 * width, num_layers=1, num_heads=2))


def _autoencoder(settings: EditorStart) -> HubObject:
    """An autoencoder without normalization and sampling, which passes colours on from the start."""
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
