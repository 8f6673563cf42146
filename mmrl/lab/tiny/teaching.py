"""Teaching of tiny models: what generators have in common, a falling rate, steps that are reported, the loss of rectified flow.

x_sigma = (1 - sigma) x_0 + sigma noise,    loss = mean (v(x_sigma, sigma, caption) - (noise - x_0))^2
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmrl.lab.tiny.byte_tokens import HubObject
from mmrl.runtime.cache import Progress, hash_of, keep
from mmrl.runtime.repeating import bit_for_bit

Note = Callable[[int, float], None]
"""Called with the step of a stage (from 1) and the loss."""


class Noisy(NamedTuple):
    """Rows of latents with noise."""

    captions: Sequence[str]
    """Different ones, empty where a row is learned without caption."""
    places: Int[Tensor, " n"]
    """Which caption a row has."""
    rows: Int[Tensor, " n"]
    sigma: Float[Tensor, " n"]
    latents: Float[Tensor, "n ..."]


@dataclass(frozen=True)
class GeneratorStart:
    """The settings by which every small generator is built and taught."""

    data: Any
    """Endless examples. A frozen dataclass: its fields and its file are part of the cached model's name."""
    name: str
    """The name of the cached folder."""
    seed: int = 0
    pool: int = 4096
    """Examples drawn once and learned from again and again."""
    batch_size: int = 64
    vae_steps: int = 1000
    vae_batch_size: int = 8
    vae_lr: float = 3e-3
    steps: int = 1200
    lr: float = 1e-3
    """AdamW, 50 steps of warm-up, then a cosine down to a hundredth."""
    noise: float = 0.0
    """Mean of the logit of sigma: above 0 more of what is learned from lies in noise, where the caption decides."""
    unlabelled: float = 0.1
    """Share of examples learned without caption, for guidance."""
    halvings: int = 2
    """The autoencoder makes pictures 2^halvings times smaller along both sides."""
    vae_channels: int = 16
    latents: int = 4
    """Channels of a latent."""
    layers: int = 4
    heads: int = 4
    """Attention heads, of 32 dimensions each unless the kind says otherwise."""
    max_tokens: int = 10
    """The longest caption, start and end included."""


S = TypeVar("S", bound=GeneratorStart)


@dataclass(frozen=True)
class PipelineKind(Generic[S]):
    """How pipelines of one kind are built and taught; they are taught once and then kept."""

    untaught: Callable[[S], HubObject]
    lesson: Callable[[HubObject, S, Note, Note], None]
    """Trains first the autoencoder, then transformer and text encoders together on its latents, and notes the steps of both."""
    code: tuple[ModuleType, ...]
    """Modules that draw, build and teach: their files are part of the cached model's name."""

    def build(self, settings: S) -> HubObject:
        """The untaught pipeline, in evaluation mode."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            pipeline = self.untaught(settings)
        for part in pipeline.components.values():
            if isinstance(part, nn.Module):
                part.eval()
        return pipeline

    def teach(self, pipeline: HubObject, settings: S, progress: Progress | None = None) -> None:
        """Give the pipeline its lesson, which draws by the settings' seed."""

        def after(done: int) -> Note:
            def note(step: int, loss: float) -> None:
                if progress is not None:
                    progress(done + step, settings.vae_steps + settings.steps, loss)

            return note

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed + 1)
            self.lesson(pipeline, settings, after(0), after(settings.vae_steps))

    def fingerprint(self, settings: S) -> str:
        """See `keep.hash_of`."""
        code = (type(settings), type(settings.data), *self.code)
        return hash_of(settings, code, ("torch", "diffusers", "transformers"))

    @bit_for_bit()
    def warm_start(self, settings: S, folder: Path | None = None, progress: Progress | None = None) -> Path:
        """Build, teach and save a pipeline, and return its folder; see `keep.keep`."""

        def make(unfinished: Path) -> None:
            pipeline = self.build(settings)
            self.teach(pipeline, settings, progress)
            pipeline.save_pretrained(unfinished)

        return keep(folder, f"tiny-{settings.name}-{self.fingerprint(settings)}", "model_index.json", make)


def cosine(step: int, steps: int, warmup: int) -> float:
    """Factor of the learning rate: up over the warm-up, then down to a hundredth."""
    return max(0.01, min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps)))


def updates(weights: Sequence[nn.Parameter], lr: float, steps: int, note: Note) -> Iterator[Callable[[Tensor], None]]:
    """Repeat the function that takes a loss: AdamW with 50 steps of warm-up, then a cosine; gradients are clipped at 1."""
    optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=0.0)
    for step in range(steps):

        def learn(loss: Tensor, step: int = step) -> None:
            optimizer.param_groups[0]["lr"] = lr * cosine(step, steps, warmup=50)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            note(step + 1, loss.item())

        yield learn


def learn_to_restore(
    vae: nn.Module,
    shown: Float[Tensor, "n ..."],
    settings: GeneratorStart,
    note: Note,
    coders: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]],
) -> None:
    """Minimize the mean squared error of pictures from slightly noisy latents; `coders` encode and decode."""
    encode, decode = coders
    for learn in updates(list(vae.parameters()), settings.vae_lr, settings.vae_steps, note):
        chosen = shown[torch.randint(len(shown), (settings.vae_batch_size,))]
        z = encode(chosen)
        out = decode(z + 0.1 * torch.randn_like(z))
        # Without the second term latents may grow until the noise does not matter.
        learn((out - chosen).square().mean() + 0.01 * z.square().mean())


def learn_velocities(
    trained: Sequence[nn.Module],
    latents: Float[Tensor, "pool ..."],
    captions: Sequence[str],
    settings: GeneratorStart,
    note: Note,
    velocity: Callable[[Noisy], Tensor],
) -> None:
    """Learn the velocity noise - data, at times whose logit is normal; a share of the rows has no caption."""
    texts = list(dict.fromkeys(["", *captions]))
    numbers = torch.tensor([texts.index(caption) for caption in captions])
    weights, size = [weight for part in trained for weight in part.parameters()], settings.batch_size
    for learn in updates(weights, settings.lr, settings.steps, note):
        rows = torch.randint(len(latents), (size,))
        shown = torch.where(torch.rand(size) < settings.unlabelled, 0, numbers[rows])
        sigma = (torch.randn(size) + settings.noise).sigmoid()
        noise = torch.randn_like(latents[rows])
        level = sigma.view(-1, *[1] * (latents.ndim - 1))
        used, places = shown.unique(return_inverse=True)
        noisy = (1 - level) * latents[rows] + level * noise
        batch = Noisy([texts[i] for i in used.tolist()], places, rows, sigma, noisy)
        learn((velocity(batch) - (noise - latents[rows])).square().mean())
