"""Does the clip show the right coloured shape, moving in the right direction, smoothly and on a clean background?

    r = way (colour + shape + smooth + paper) / 4, and 0 where nothing, or nearly everything, is drawn on in any frame

A product, so that a still clip scores 0 however pretty. Ink is what differs from paper, dist the distance of two colours in the
RGB cube, and the track the middles of the ink, in sides of the picture:

    way     (end - start of the track along the asked way) / 0.4, times 1 - (as much across it - 0.05) / 0.2
    colour  mean over ink of 1 - (dist(pixel, colour) - 0.1) / 0.5
    shape   (IoU of the ink with the asked shape of the same area and middle - 0.7) / 0.25
    smooth  1 - (distance of the track from an even straight one - 0.01) / 0.08,
            times 1 - (mean dist(paper, paper of the next frame) - 0.02) / 0.2
    paper   1 - mean dist(pixel, paper) outside of the shape / 0.2

each clipped to [0, 1]; colour, shape and paper are means over frames. An ideal clip scores 0.96, one that flickers half of that.

Modality: video
Range: [0, 1]
Source: own
Licence: Apache-2.0
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmrl import Group, Need, Prompt, Scored
from mmrl.data.drawn.gliding import REACH, WAYS, Glide
from mmrl.data.drawn.shapes import COLOURS, PAPER, SHAPES, ink_beside
from mmrl.runtime.ranges import Share, check_ranges
from mmrl.serving.media import clip_of

PARTS = ("way", "colour", "shape", "smooth", "paper")
FAR = 2 * 0.9 * REACH
"""Sides that the middle of the ink has to move for the whole of `way`."""


@dataclass(frozen=True)
class GlideMatch:
    """The way, times the mean of four parts. ValueError for a sample without a clip, or a prompt without the columns."""

    ink: Share = 0.4
    """Distance from paper, in the RGB cube, from which a pixel is ink."""
    areas: tuple[Share, Share] = (0.03, 0.35)
    """Share of every frame that ink must cover."""
    needs = Need("the columns colour, shape and way, as of the data set gliding_shapes", lambda prompt, *_: _glide(prompt))

    __post_init__ = check_ranges

    def __call__(self, group: Group) -> list[float | Scored | None]:
        glide = _glide(group.prompt)
        return [self._score(_pixels(clip_of(sample, group.prompt.id), group.prompt), glide) for sample in group.samples]

    def _score(self, clip: Any, glide: Glide) -> Scored:
        side = clip.shape[1]
        stain = _distance(clip, PAPER)
        ink = stain > self.ink
        covered = ink.mean((1, 2))
        if len(clip) < 2 or not ((covered >= self.areas[0]) & (covered <= self.areas[1])).all():
            return Scored(0.0, dict.fromkeys(PARTS, 0.0))
        middles, overlap, around = map(np.array, zip(*(ink_beside(glide.shape, frame) for frame in ink), strict=True))
        of_colour = [
            np.clip(1 - (_distance(frame[own], COLOURS[glide.colour]) - 0.1) / 0.5, 0, 1).mean()
            for frame, own in zip(clip, ink, strict=True)
        ]
        of_paper = [np.clip(1 - gap[own].mean() / 0.2, 0, 1) for gap, own in zip(stain, around, strict=True)]
        parts = {
            "way": _way(middles / side, glide),
            "colour": np.mean(of_colour),
            "shape": np.clip((overlap - 0.7) / 0.25, 0, 1).mean(),
            "smooth": _evenness(middles / side) * _steadiness(clip, around),
            "paper": np.mean(of_paper),
        }
        rest = np.mean([value for name, value in parts.items() if name != "way"])
        return Scored(float(parts["way"] * rest), {name: float(value) for name, value in parts.items()})


def _way(track: Any, glide: Glide) -> Any:
    x, y = WAYS[glide.way]
    moved = track[-1] - track[0]
    across = abs(moved[0] * y) + abs(moved[1] * x)
    return np.clip((moved[0] * x + moved[1] * y) / FAR, 0, 1) * np.clip(1 - (across - 0.05) / 0.2, 0, 1)


def _evenness(track: Any) -> Any:
    even = np.linspace(track[0], track[-1], len(track))
    return np.clip(1 - (np.linalg.norm(track - even, axis=1).mean() - 0.01) / 0.08, 0, 1)


def _steadiness(clip: Any, around: Any) -> Any:
    both = around[1:] & around[:-1]
    change = np.linalg.norm(clip[1:] - clip[:-1], axis=-1)
    flash = np.mean([gap[own].mean() for gap, own in zip(change, both, strict=True)])
    return np.clip(1 - (flash - 0.02) / 0.2, 0, 1)


def _glide(prompt: Prompt) -> Glide:
    try:
        glide = Glide(*(prompt.columns[name] for name in Glide._fields))
    except KeyError as error:
        raise ValueError(f"prompt {prompt.id!r} has no column {error}: take prompts of the data set 'gliding_shapes'") from None
    if glide.colour not in COLOURS or glide.shape not in SHAPES or glide.way not in WAYS:
        raise ValueError(f"prompt {prompt.id!r} asks for {glide.caption!r}, which cannot be drawn: see mmrl.data.drawn.gliding")
    return glide


def _pixels(clip: Any, prompt: Prompt) -> Any:
    if clip.shape[1] != clip.shape[2]:
        raise ValueError(f"the clip of prompt {prompt.id!r} is {clip.shape[2]} x {clip.shape[1]} pixels: it must be square")
    return clip.astype(np.float32) / 255


def _distance(pixels: Any, colour: tuple[float, float, float]) -> Any:
    return np.linalg.norm(pixels - np.array(colour, np.float32), axis=-1)
