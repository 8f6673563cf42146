"""Other ways to show a prompt: frames shuffled, a sentence added, parts of the pictures hidden. (prompt, seed) -> prompt."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from mmrl.core.samples import Media
from mmrl.core.types import Prompt, Video
from mmrl.runtime.ranges import Count, Share, check_ranges


def has_clip(prompt: Prompt) -> bool:
    return any(isinstance(source, Video) for source in prompt.media)


def is_sequence(prompt: Prompt) -> bool:
    """Does the order of what the prompt shows carry meaning: a clip, or several pictures?"""
    return has_clip(prompt) or len(prompt.media) > 1


@dataclass(frozen=True)
class ShuffleFrames:
    """The same frames in another order; of a prompt with pictures only, the pictures (T-GRPO, arXiv:2503.21776)."""

    def __call__(self, prompt: Prompt, seed: int) -> Prompt:
        if has_clip(prompt):
            media = tuple(replace(one, shuffle=seed % 2**31) if isinstance(one, Video) else one for one in prompt.media)
            return replace(prompt, media=media)
        return replace(prompt, media=tuple(random.Random(seed).sample(prompt.media, len(prompt.media))))


@dataclass(frozen=True)
class Hint:
    """The prompt's text with a sentence under it."""

    text: str

    def __call__(self, prompt: Prompt, seed: int) -> Prompt:
        return replace(prompt, text=f"{prompt.text}\n{self.text}")


@dataclass(frozen=True)
class Degrade:
    """pixel + 255 * strength * N(0, 1) on pictures and on every frame of clips: the prompt made harder to see (arXiv:2506.07464).

    `strength` in (0, 1] is in shares of a pixel's range.
    """

    strength: float

    def __call__(self, prompt: Prompt, seed: int) -> Prompt:
        media = [
            replace(one, noise=(self.strength, (seed + i) % 2**63)) if isinstance(one, Video) else self._picture(one, seed + i)
            for i, one in enumerate(prompt.media)
        ]
        return replace(prompt, media=tuple(media))

    def _picture(self, source: Media, seed: int) -> Media:
        def add_noise(pixels: torch.Tensor) -> torch.Tensor:
            return pixels + 255 * self.strength * torch.randn(pixels.shape, generator=torch.Generator().manual_seed(seed % 2**63))

        return repaint(source, add_noise)


@dataclass(frozen=True)
class MaskPatches:
    """Every patch of every picture black with a probability (PAPO, arXiv:2507.06448). For pictures, not for clips."""

    probability: Share = 0.6
    """Chance of every patch to be black."""
    patch: Count = 14
    """Pixels of the picture's file."""

    __post_init__ = check_ranges

    def __call__(self, prompt: Prompt, seed: int) -> Prompt:
        """Raises ValueError when the prompt holds a clip, whose frames only its decoder sees."""
        if has_clip(prompt):
            raise ValueError(
                f"prompt {prompt.id!r} shows a clip, and MaskPatches hides parts of pictures only: take image data, or a method "
                "that needs no masked view"
            )

        def hide(seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda pixels: pixels * self._visible(pixels.shape[0], pixels.shape[1], seed)

        return replace(prompt, media=tuple(repaint(source, hide(seed + i)) for i, source in enumerate(prompt.media)))

    def _visible(self, height: int, width: int, seed: int) -> torch.Tensor:
        """(height, width, 1): 0 in hidden patches."""
        rng = torch.Generator().manual_seed(seed % 2**63)
        kept = torch.rand(-(-height // self.patch), -(-width // self.patch), generator=rng) >= self.probability
        kept = kept.repeat_interleave(self.patch, 0).repeat_interleave(self.patch, 1)
        return kept[:height, :width, None].float()


def repaint(source: Media, paint: Callable[[torch.Tensor], torch.Tensor]) -> Media:
    """A picture (a path or a PIL image) with other pixels: `paint` gets and gives (height, width, 3) in [0, 255]."""
    import numpy as np
    from PIL import Image

    from mmrl.runtime.pictures import open_upright

    pixels = paint(torch.tensor(np.asarray(open_upright(source)).astype(np.float32)))
    return Image.fromarray(pixels.round().clamp(0, 255).to(torch.uint8).numpy())
