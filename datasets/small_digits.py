"""Generated pictures with one printed digit that is too small for the model to see: "Which digit is in the picture?" No download.

256 x 256 pixels with a digit of 13 to 15: for models that look at a part again ([environment] use = "zoom"). Pictures are drawn
when a prompt is read, always the same for the same seed; held-out pictures are of a series of their own.
Licence: own drawing, Apache-2.0.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from mmrl import Box, Prompt
from mmrl.core.samples import MediaSize
from mmrl.data.drawn.small_digits import GLYPHS, PLACES, QUESTION, SIDE, Place, SmallDigit, box_of, draw_small_digit
from mmrl.data.sources import lazily
from mmrl.data.tools.pictures import zoom
from mmrl.runtime.ranges import Count, Seed

__all__ = ["load"]
READ, POINT, AFTER = "Which digit is this?", "Zoom in on the digit.", "Your answer?"
"""Two questions that teach the skills, and what the environment writes behind the part that it shows."""
LOOKS = 0.33
"""Share of the hurried that look closer."""
AIMED = 0.6
"""Share of those that look at the digit; the others look anywhere."""
LAZY = 0.75
"""Share of the answers at once that say 1; the others say any digit."""
RIGHT = 0.95
"""Share of the right answers of those that saw the digit."""


def load(
    split: str = "train",
    size: Count = 4096,
    seed: Seed = 0,
    written: Literal["", "read", "point", "hurried"] = "",
) -> Sequence[Prompt]:
    """Prompts whose answer is a digit; column `box` holds its pixel box.

    Args:
        split: train or held_out.
        size: the number of prompts.
        seed: another seed gives other pictures of the same kind.
        written: what a column `completion` teaches. read: the digit of a part that is cut from the picture. point: the call that
            cuts it; the answer is its box. hurried: answers as people in a hurry give them, who mostly say 1 at once, and of whom
            those who look closer often look at the wrong place; completions of two turns are lists of messages.

    Raises:
        ValueError: no such split.
    """

    def prompt(index: int) -> Prompt:
        drawn, name = draw_small_digit(seed, index, split), f"{split}-{seed}-{index}"
        corners = Box(*drawn.corners, "pixel", str(drawn.digit))
        if written == "read":
            return Prompt(name, READ, (part_of(drawn, drawn.place),), drawn.digit, {"completion": str(drawn.digit)})
        if written == "point":
            whole = Box(*box_of(drawn.place), "norm1000").to("pixel", MediaSize(*[SIDE] * 4))
            return Prompt(name, POINT, (drawn.image,), (whole,), {"completion": call_of(drawn.place)})
        columns: dict[str, Any] = {"box": corners}
        if written:
            columns["completion"] = _hurried(np.random.default_rng([seed, index, 2]), drawn)
        return Prompt(name, QUESTION, (drawn.image,), drawn.digit, columns)

    return lazily(size, prompt)


def call_of(place: Place) -> str:
    """The call that shows a square, as the environment zoom takes it: `<tool_call>[312,62,437,187]</tool_call>`."""
    return f"<tool_call>[{','.join(map(str, box_of(place)))}]</tool_call>"


def part_of(drawn: SmallDigit, place: Place) -> Any:
    """The part that the call of a square shows."""
    return zoom(drawn.image, box_of(place), "norm1000")


def _hurried(rng: np.random.Generator, drawn: SmallDigit) -> str | list[dict[str, Any]]:
    """A digit at once, or a call, the part that it shows, and then a digit; the same at every reading of the prompt."""
    guess = str(rng.integers(len(GLYPHS)))
    if rng.random() >= LOOKS:
        return "1" if rng.random() < LAZY else guess
    column, row = rng.integers(PLACES, size=2).tolist()
    place = drawn.place if rng.random() < AIMED else (column, row)
    answer = str(drawn.digit) if place == drawn.place and rng.random() < RIGHT else guess
    shown = [{"type": "image", "image": part_of(drawn, place)}, {"type": "text", "text": f"\n{AFTER}"}]
    return [
        {"role": "assistant", "content": call_of(place)},
        {"role": "user", "content": shown},
        {"role": "assistant", "content": answer},
    ]
