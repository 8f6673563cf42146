"""Captions of moving coloured shapes, as prompts for clips: "a red circle moves left", alone or with a first frame.

Four colours, three shapes and four ways make 48 captions; a quarter of them, in which every colour, shape and way occurs
equally often, is held out. Columns: colour, shape, way. For the reward `gliding_shapes`. No download. Licence: Apache-2.0.
"""

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from mmrl import Prompt
from mmrl.data.drawn.gliding import HELD_OUT, TRAIN, Glide, draw
from mmrl.data.drawn.shapes import captions_of, to_bytes
from mmrl.runtime.ranges import Count, Seed

SPLITS = {"train": TRAIN, "held_out": HELD_OUT}


def load(split: str = "train", size: Count | None = None, seed: Seed = 0, first_frame: Count | None = None) -> Sequence[Prompt]:
    """All captions of a split, in an order that the seed decides.

    Args:
        split: train or held_out.
        size: only the first n; None: all.
        seed: seed of the order, and of place and size in first frames.
        first_frame: pixels a side of a picture that every prompt holds, of the shape in the middle, from where it may go any way;
            None: text alone.

    Raises:
        ValueError: no such split, or more captions than it has.
    """
    found = captions_of(SPLITS, split, size, seed)
    return found if first_frame is None else [_starting(prompt, first_frame, seed) for prompt in found]


def _starting(prompt: Prompt, side: int, seed: int) -> Prompt:
    rng = np.random.default_rng([seed, zlib.crc32(prompt.id.encode())])
    first = to_bytes(draw(Glide(**prompt.columns), side, frames=2, rng=rng, from_middle=True)[0])
    return replace(prompt, media=(Image.fromarray(first),))
