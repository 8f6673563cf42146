"""The puzzles by their names, each a pure function of (kind, seed, index, split, level)."""

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from mmrl.data.drawn.puzzles import dial, follow, pairs, ruler, slide, tiles, upright
from mmrl.data.drawn.puzzles.puzzle import Puzzle
from mmrl.data.drawn.scenes import key_of

Kind = Literal["dial", "difference", "follow", "odd", "pairs", "ruler", "slide", "upright"]
KINDS: Mapping[str, Callable[[np.random.Generator, int], Puzzle]] = {
    "dial": dial.make,
    "difference": tiles.make_difference,
    "follow": follow.make,
    "odd": tiles.make_odd,
    "pairs": pairs.make,
    "ruler": ruler.make,
    "slide": slide.make,
    "upright": upright.make,
}


def make_puzzle(kind: str, seed: int, index: int, split: str, level: int) -> Puzzle:
    """Puzzle `index` of the endless series `seed`; `kind` is one of KINDS. ValueError for an unknown split."""
    return KINDS[kind](np.random.default_rng([*key_of(seed, index, split), level, *kind.encode()]), level)
