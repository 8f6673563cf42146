"""Generated pictures with one printed digit that is too small for the model to see: "Which digit is in the picture?" No download.

256 x 256 pixels with a digit of 13 to 15: for models that look at a part again ([environment] use = "zoom"). Pictures are drawn
when a prompt is read, always the same for the same seed; held-out pictures are of a series of their own.
Licence: own drawing, Apache-2.0.
"""

from collections.abc import Sequence

from mmrl import Box, Prompt
from mmrl.core.ranges import Count, Seed
from mmrl.data.drawn.small_digits import QUESTION, draw_small_digit
from mmrl.data.lazy import LazyPrompts

__all__ = ["load"]


def load(split: str = "train", size: Count = 4096, seed: Seed = 0) -> Sequence[Prompt]:
    """Prompts whose answer is a digit; column `box` holds its pixel box.

    Args:
        split: train or held_out.
        size: the number of prompts.
        seed: another seed gives other pictures of the same kind.

    Raises:
        ValueError: no such split.
    """

    def prompt(index: int) -> Prompt:
        drawn = draw_small_digit(seed, index, split)
        x1, y1, x2, y2 = drawn.corners
        columns = {"box": Box(x1, y1, x2, y2, "pixel", str(drawn.digit))}
        return Prompt(f"{split}-{seed}-{index}", QUESTION, (drawn.image,), drawn.digit, columns)

    prompts = LazyPrompts(size, prompt)
    if size:
        prompts[0]
    return prompts
