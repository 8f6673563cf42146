"""Captions of coloured shapes, as prompts for pictures: "a red circle on the left". No download.

Four colours, three shapes and four sides make 48 captions; a quarter of them, in which every colour, shape and side occurs
equally often, is held out. Columns: colour, shape, side. For the reward `shapes`. With `pictures` the columns `picture` and
`chosen` hold what a caption asks for, and `rejected` the same with stains, for stages that teach. Licence: Apache-2.0.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from mmrl import Prompt
from mmrl.data.drawn.shapes import HELD_OUT, TRAIN, Wish, captions_of, draw, stain, to_bytes
from mmrl.runtime.ranges import Count, Seed

SPLITS = {"train": TRAIN, "held_out": HELD_OUT}
SIDE = 32
"""Pixels of a picture along one side."""


def load(split: str = "train", size: Count | None = None, seed: Seed = 0, pictures: bool = False) -> Sequence[Prompt]:
    """All captions of a split, in an order that the seed decides.

    Args:
        split: train or held_out.
        size: only the first n; None: all.
        seed: seed of the order.
        pictures: draw every caption, in 32 x 32 pixels.

    Raises:
        ValueError: no such split, or more captions than it has.
    """
    prompts = captions_of(SPLITS, split, size, seed)
    return [_with_pictures(prompt, seed) for prompt in prompts] if pictures else prompts


def _with_pictures(prompt: Prompt, seed: int) -> Prompt:
    """The prompt with columns that hold what it asks for; place, size and stains depend on the seed and its caption."""
    wish = Wish(**prompt.columns)
    rng = np.random.default_rng([seed, *wish.caption.encode()])
    clean = draw(wish, SIDE, rng)
    good, stained = (Image.fromarray(to_bytes(one)) for one in (clean, stain(clean, rng)))
    return replace(prompt, columns={**prompt.columns, "picture": good, "chosen": good, "rejected": stained})
