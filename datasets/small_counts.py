"""Generated pictures with a few dots that are too close together to be counted at first sight. No download.

256 x 256 pixels with 1 to 5 dots: for models that look at a part again ([environment] use = "zoom"). Column `box` is the part
with the dots, `difficulty` their number. Always the same for the same seed; held-out pictures are of a series of their own.
Licence: own drawing, Apache-2.0.
"""

from collections.abc import Sequence

from mmrl import Box, Prompt
from mmrl.data.drawn.small_counts import QUESTION, draw_small_count
from mmrl.data.sources import lazily
from mmrl.runtime.ranges import Count, Seed

__all__ = ["load"]


def load(split: str = "train", size: Count = 4096, seed: Seed = 0) -> Sequence[Prompt]:
    """Prompts whose answer is a number.

    Args:
        split: train or held_out.
        size: the number of prompts.
        seed: another seed gives other pictures of the same kind.

    Raises:
        ValueError: no such split.
    """

    def prompt(index: int) -> Prompt:
        drawn = draw_small_count(seed, index, split)
        columns = {"box": Box(*drawn.corners, "pixel", "dots"), "difficulty": drawn.count}
        return Prompt(f"{split}-{seed}-{index}", QUESTION, (drawn.image,), drawn.count, columns)

    return lazily(size, prompt)
