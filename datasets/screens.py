"""Generated screens with numbered buttons to press in an order: "Press 3, then 7." No download.

For [environment] use = "screen": after every press the buttons stand elsewhere. Column `difficulty` is the number of presses.
Screens are always the same for the same seed; held-out screens are of a series of their own.
Licence: own drawing, Apache-2.0.
"""

from collections.abc import Sequence
from typing import Annotated

from mmrl import Prompt
from mmrl.data.drawn.screens import draw_screen, order_of
from mmrl.data.sources import lazily
from mmrl.runtime.ranges import Count, Range, Seed

__all__ = ["load"]


def load(
    split: str = "train",
    size: Count = 4096,
    seed: Seed = 0,
    buttons: Annotated[int, Range(2, 10)] = 4,
    presses: Annotated[int, Range(1, 10)] = 2,
) -> Sequence[Prompt]:
    """Prompts without an answer: the world knows what was pressed.

    Args:
        split: train or held_out.
        size: the number of prompts.
        seed: another seed gives other screens.
        buttons: buttons on a screen.
        presses: buttons to press, at most as many as there are.

    Raises:
        ValueError: no such split, or more presses than buttons.
    """
    if presses > buttons:
        raise ValueError(f"presses is {presses}, and there are {buttons} buttons, each of which is pressed once at most")

    def prompt(index: int) -> Prompt:
        wanted = order_of(seed, index, split, buttons, presses)
        text = f"Press {', then '.join(map(str, wanted))}. Click on one button at a time."
        columns = {"screen": f"{seed} {index} {split} {buttons} {presses}", "difficulty": presses}
        return Prompt(f"{split}-{seed}-{index}", text, (draw_screen(seed, index, split, buttons, 0).image,), columns=columns)

    return lazily(size, prompt)
