"""Captions of moving coloured shapes, as prompts for clips: "a red circle moves left". No download.

Four colours, three shapes and four ways make 48 captions; a quarter of them, in which every colour, shape and way occurs
equally often, is held out. Columns: colour, shape, way. For the reward `gliding_shapes`. Licence: Apache-2.0.
"""

from collections.abc import Sequence

from mmrl import Prompt
from mmrl.core.ranges import Count, Seed
from mmrl.data.drawn.captions import captions_of
from mmrl.data.drawn.gliding import HELD_OUT, TRAIN

SPLITS = {"train": TRAIN, "held_out": HELD_OUT}


def load(split: str = "train", size: Count | None = None, seed: Seed = 0) -> Sequence[Prompt]:
    """All captions of a split, in an order that the seed decides.

    Args:
        split: train or held_out.
        size: only the first n; None: all.
        seed: seed of the order.

    Raises:
        ValueError: no such split, or more captions than it has.
    """
    return captions_of(SPLITS, split, size, seed)
