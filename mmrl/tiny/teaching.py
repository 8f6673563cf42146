"""Teaching of tiny models: a falling rate, steps that are told of, and the loss of rectified flow.

x_sigma = (1 - sigma) x_0 + sigma noise,    loss = mean (v(x_sigma, sigma, caption) - (noise - x_0))^2
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmrl.runtime.repeating import bit_for_bit
from mmrl.tiny.byte_tokens import HubObject
from mmrl.tiny.keep import Progress, keep

Note = Callable[[int, float], None]
"""Called with the step of a stage (from 1) and the loss."""


class Noisy(NamedTuple):
    """Rows of latents with noise, and what is to be learned of them."""

    captions: Int[Tensor, " n"]
    """Numbers of texts; 0 where a row is learned without caption."""
    rows: Int[Tensor, " n"]
    sigma: Float[Tensor, " n"]
    latents: Float[Tensor, "n ..."]
    velocity: Float[Tensor, "n ..."]


@bit_for_bit()
def keep_pipeline(folder: Path | None, name: str, build: Callable[[], HubObject], teach: Callable[[HubObject], None]) -> Path:
    """Build, teach and save a pipeline, and return its folder; if that exists already, nothing is trained.

    The result depends on the settings alone, bit for bit on one machine; rounding may differ between machines.

    Args:
        folder: where to save; None: `name` below MMRL_CACHE (or ~/.cache/mmrl).
    """

    def make(unfinished: Path) -> None:
        pipeline = build()
        teach(pipeline)
        pipeline.save_pretrained(unfinished)

    return keep(folder, name, "model_index.json", make)


def step_counter(progress: Progress | None, done: int, total: int) -> Note:
    """Progress line of a stage's steps, after so many that were done before it."""

    def note(step: int, loss: float) -> None:
        if progress is not None:
            progress(done + step, total, loss)

    return note


def cosine(step: int, steps: int, warmup: int) -> float:
    """Factor of the learning rate: up over the warm-up, then down to a hundredth."""
    return max(0.01, min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps)))


def updates(weights: Sequence[nn.Parameter], lr: float, steps: int, note: Note) -> Iterator[Callable[[Tensor], None]]:
    """So many times the function that takes a loss: AdamW with 50 steps of warm-up, then a cosine; gradients are clipped at 1."""
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


def number_texts(captions: Sequence[str]) -> tuple[list[str], Int[Tensor, " n"]]:
    """All different captions behind the empty one, and the number of each caption among them."""
    texts = list(dict.fromkeys(["", *captions]))
    return texts, torch.tensor([texts.index(caption) for caption in captions])


def noisy_rows(latents: Float[Tensor, "pool ..."], captions: Int[Tensor, " pool"], size: int, unlabelled: float) -> Noisy:
    """So many rows by chance, at times whose logit is normal, a share of them without caption."""
    rows = torch.randint(len(latents), (size,))
    shown = torch.where(torch.rand(size) < unlabelled, 0, captions[rows])
    sigma = torch.randn(size).sigmoid()
    noise = torch.randn_like(latents[rows])
    level = sigma.view(-1, *[1] * (latents.ndim - 1))
    return Noisy(shown, rows, sigma, (1 - level) * latents[rows] + level * noise, noise - latents[rows])
