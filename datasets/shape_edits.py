"""Coloured shapes to edit: a picture, and "make it blue", "move it to the top", "make the background dark". No download.

Four colours, three shapes and four sides are 48 pictures, and twelve instructions change one thing of them; those that would
change nothing are left out. Every fourth pair of a picture and an instruction is held out: 324 to train on, 108 to judge by.
Place and size of shapes vary a little. Columns: colour, shape, side, ground (of the source), part, value (what is to change to
what) and jitter (how position and size differ from the usual). For the reward `shape_edits`. Licence: Apache-2.0.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from PIL import Image

from mmrl import Prompt
from mmrl.data.drawn.shape_edits import HELD_OUT, TRAIN, draw, jitter_of
from mmrl.data.drawn.shapes import to_bytes
from mmrl.runtime.ranges import Count, Range, Seed

SPLITS = {"train": TRAIN, "held_out": HELD_OUT}


def load(split: str = "train", times: Count = 1, side: Annotated[int, Range(1, 4096)] = 32, seed: Seed = 0) -> Sequence[Prompt]:
    """All pairs of a split, in an order that the seed decides.

    Args:
        split: train or held_out.
        times: how often every pair occurs, each time with a different picture.
        side: of the square pictures, in pixels.
        seed: of order, places and sizes.

    Raises:
        ValueError: no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"data.split is {split!r}: choose one of {', '.join(SPLITS)}")
    rng = np.random.default_rng([seed, 77])
    tasks = [(i, *task) for i in range(times) for task in SPLITS[split]]
    prompts: list[Prompt] = []
    for number in rng.permutation(len(tasks)).tolist():
        copy, state, instruction = tasks[number]
        jitter = jitter_of(rng)
        name = "-".join((state.colour, state.shape, state.side, instruction.value, str(copy)))
        source = Image.fromarray(to_bytes(draw(state, jitter, side)))
        columns = {**state._asdict(), **instruction._asdict(), "jitter": list(jitter)}
        prompts.append(Prompt(name, instruction.text, (source,), columns=columns))
    return prompts
