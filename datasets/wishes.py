"""Coloured shapes in users' words, for models that write: "give me a scarlet disc on the west". No download.

A painter taught on captions ("a red circle on the left") knows none of the words for colour, shape and side. The shapes are those
of the data set `shapes`, in 2,592 wordings and 864 held-out ones, and so are the columns colour, shape and side; a column
`completion` says the same in words of users and captions mixed, for stages that teach. For the reward `drawn` around `shapes`.
Licence: Apache-2.0.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mmrl import Prompt
from mmrl.data.drawn.shapes import Wish, captions_of
from mmrl.data.drawn.wishes import SPLITS, paraphrase
from mmrl.runtime.ranges import Count, Seed

__all__ = ["load"]


def load(split: str = "train", size: Count | None = None, seed: Seed = 0) -> Sequence[Prompt]:
    """The wishes of a split, in an order that the seed decides.

    Args:
        split: train or held_out, whose combinations of colour, shape and side nothing was trained on.
        size: only the first n; None: all.
        seed: seed of the order, and of the paraphrases.

    Raises:
        ValueError: no such split, or more wishes than it has.
    """
    rng = np.random.default_rng([seed, 1])
    asked = captions_of(SPLITS, split, size, seed)
    return [_with_paraphrase(prompt, f"{split}-{seed}-{i}", rng) for i, prompt in enumerate(asked)]


def _with_paraphrase(prompt: Prompt, name: str, rng: np.random.Generator) -> Prompt:
    wish = Wish(*(prompt.columns[part] for part in Wish._fields))
    return replace(prompt, id=name, columns={**wish._asdict(), "completion": paraphrase(wish, rng)})
