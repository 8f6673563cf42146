"""Generated puzzles on pictures, of eight kinds, each solved turn by turn. No download.

For [environment] use = "puzzle". Column `difficulty` is the level, `kind` the kind. Always the same for the same seed;
held-out puzzles are of a series of their own. Licence: own drawing, Apache-2.0.
"""

from collections.abc import Sequence
from typing import Annotated, get_args

from mmrl import Prompt
from mmrl.data.drawn.puzzles.kinds import Kind, make_puzzle
from mmrl.data.drawn.puzzles.puzzle import HARDEST
from mmrl.data.sources import lazily
from mmrl.runtime.ranges import Count, Range, Seed

__all__ = ["load"]
Level = Annotated[int, Range(1, HARDEST)]


def load(
    split: str = "train",
    size: Count = 4096,
    seed: Seed = 0,
    kinds: tuple[Kind, ...] = get_args(Kind),
    easiest: Level = 1,
    hardest: Level = 4,
) -> Sequence[Prompt]:
    """Prompts without an answer, of each kind and level in turn: the world knows what is right.

    Args:
        split: train or held_out.
        size: the number of prompts.
        seed: another seed gives other puzzles.
        kinds: dial (turn needles to their marks), difference (name the places at which two sheets differ), follow (a disc through
            the frames of a clip), odd (find the odd pattern), pairs (turn cards over), ruler (read a chart), slide (tiles into
            their order), upright (turn the pieces of a picture).
        easiest: the lowest level.
        hardest: the highest level.

    Raises:
        ValueError: no such split, no kinds, or the lowest level is above the highest.
    """
    if easiest > hardest or not kinds:
        raise ValueError(f"kinds are {kinds}, and levels from {easiest} to {hardest}: give a kind, and easiest <= hardest")

    def prompt(index: int) -> Prompt:
        kind, level = kinds[index % len(kinds)], easiest + index // len(kinds) % (hardest - easiest + 1)
        puzzle = make_puzzle(kind, seed, index, split, level)
        columns = {"puzzle": f"{kind} {seed} {index} {split} {level}", "kind": kind, "difficulty": level}
        return Prompt(f"{split}-{seed}-{index}", puzzle.text, (puzzle.look(),), columns=columns)

    return lazily(size, prompt)
