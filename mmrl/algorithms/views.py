"""Other ways to show a prompt: frames shuffled, a sentence added, parts of the pictures hidden. (prompt, seed) -> prompt."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch

from mmrl.core.samples import Media
from mmrl.core.types import Prompt, Video
from mmrl.runtime.ranges import Count, CountOrNone, Share, check_ranges


def column(reward: str, view: str) -> str:
    """The column of the scores that holds a reward's mean over a group's probes under a view: `iou@shuffled`."""
    return f"{reward}@{view}"


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


SEEN = "teacher's"
"""The name of the view that teachers read."""
TOLD = "told"
"""The column with what is known from the samples alone: a right sample of the same prompt."""
WORDS = "Here is a correct solution:\n{text}\nNow answer the question yourself."
"""What a teacher is shown under the prompt, with a column's text in it."""


@dataclass(frozen=True)
class Privileged:
    """The prompt with what a teacher sees besides: a column's text under it, other media, more frames of a clip.

    A prompt whose column is empty is shown as it is.
    """

    column: str = ""
    """The column with a text; `told`: another sample of the prompt that was right, as it was written."""
    text: str = WORDS
    """Goes under the prompt, with {text} in it."""
    media: str = ""
    """The column with the media that take the place of the prompt's: a file, a picture, or a list of them."""
    frames: CountOrNone = 0
    """Frames of every clip; 0: as the policy sees it."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if "{text}" not in self.text:
            raise ValueError(f"Privileged.text is {self.text!r}: write {{text}} where the column's text goes")
        if self.text != WORDS and not self.column:
            raise ValueError("Privileged.text goes around a column's text, and column is empty: name one, or leave text out")

    @property
    def tells(self) -> bool:
        """Is it known from the samples alone?"""
        return self.column == TOLD

    @property
    def is_plain(self) -> bool:
        """Is nothing shown besides?"""
        return not (self.column or self.media or self.frames)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError where no prompt has the column, its media are none, or no prompt has a clip to show more of."""
        for column in filter(None, (self.media, "" if self.tells else self.column)):
            if prompts and not any(found_in(prompt, column) is not None for prompt in prompts):
                known = ", ".join(sorted({name for prompt in prompts for name in prompt.columns})) or "none"
                raise ValueError(
                    f"a teacher is shown the column {column!r}, and none of the {len(prompts)} prompts that were looked at has "
                    f"it (their columns: {known}): add it to the data, or name another one"
                )
        for prompt in prompts if self.media else ():
            refuse_no_media(prompt, self.media)
        if self.frames and prompts and not any(map(has_clip, prompts)):
            raise ValueError(
                f"a teacher is shown {self.frames} frames of every clip, and none of the {len(prompts)} prompts that were looked "
                "at has a clip: leave frames out"
            )

    def __call__(self, prompt: Prompt, seed: int) -> Prompt:
        media, text = media_in(prompt, self.media) or prompt.media, found_in(prompt, self.column)
        if self.frames:
            media = tuple(replace(one, frames=self.frames, fps=None) if isinstance(one, Video) else one for one in media)
        shown = prompt.text if text is None else f"{prompt.text}\n{self.text.replace('{text}', str(text))}"
        return replace(prompt, text=shown, media=media)


def found_in(prompt: Prompt, column: str) -> object:
    """The value in a column of a prompt, such as the number 0; None where the column is empty."""
    found: object = prompt.columns.get(column)
    is_empty = type(found) in (str, list, tuple) and not found
    return None if is_empty else found


def media_in(prompt: Prompt, column: str) -> tuple[Media, ...]:
    """The media of a column, one or a list; none where it is empty."""
    found = found_in(prompt, column)
    if found is None:
        return ()
    return tuple(cast("Sequence[Media]", found)) if isinstance(found, list | tuple) else (cast(Media, found),)


def refuse_no_media(prompt: Prompt, column: str) -> None:
    """Raise ValueError for a column whose value is no media, or names no file."""
    for one in media_in(prompt, column):
        is_file = Path(one).is_file() if isinstance(one, str | Path) else not isinstance(one, int | float | Mapping)
        if not is_file:
            raise ValueError(
                f"prompt {prompt.id!r} has {str(one)[:80]!r} in the column {column!r}, which a teacher is shown and is no file: "
                "write its absolute path"
            )


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
